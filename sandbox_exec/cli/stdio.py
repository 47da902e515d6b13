"""What descriptors 0 to 2 are, and whether a command may have them."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Collection, Mapping
from typing import Final

from sandbox_exec.errors import ConfigError

_NAMES: Final = ("standard input", "standard output", "standard error")
_NULL: Final = os.makedev(1, 3)
_WORDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def closed() -> list[int]:
    """Those that were closed when we started; their numbers may be other files' by now."""
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return [number for number, stream in enumerate(streams) if stream is None]


def terminals() -> list[int]:
    """Those that are a terminal.

    Raises:
        ConfigError: one of the three is nothing that a command may have.
    """
    found = []
    for number in sorted({0, 1, 2} - set(closed())):
        if os.isatty(number):
            found.append(number)
        elif what := _unfit(number):
            raise ConfigError(
                f"{_NAMES[number]} is {what}: a command gets pipes, files, /dev/null and terminals, for more"
                " could be a way out. Put a pipe in between."
            )
    return found


def copies(instead: Mapping[int, int]) -> tuple[int, int, int]:
    """Copies of the three to give away; of those that are closed, /dev/null.

    Args:
        instead: other descriptors to copy, by number.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        sources = {**dict.fromkeys(closed(), null), **instead}
        first, second, third = (os.dup(sources.get(number, number)) for number in range(3))
    finally:
        os.close(null)
    return first, second, third


def let_go(keep: Collection[int]) -> None:
    """Holds the command's input and output open no longer, so that others see when it closes them."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in {0, 1} - {*keep, *closed()}:
        os.dup2(null, number, inheritable=False)
    os.close(null)


def _unfit(number: int) -> str:
    """What it is, if a command may not have it."""
    found = os.fstat(number)
    kind = stat.S_IFMT(found.st_mode)
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_PATH:
        return "open as a path alone"
    if kind in {stat.S_IFREG, stat.S_IFIFO} or (kind == stat.S_IFCHR and found.st_rdev == _NULL):
        return ""
    return _WORDS.get(kind, "an object of the kernel's")
