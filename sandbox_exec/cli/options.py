"""What `call` and `exec` share on the command line: the profile, the limits, --json, --status-fd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

import click

from sandbox_exec.cli.status import option as take_status

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., int]")

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_BYTES: Final = {"B": 1, "": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?) ?([a-zA-Z]*)", re.ASCII)


def _seconds(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    return None if text is None else _quantity(text, _SECONDS, "time: write 500ms, 5s, 2m or 1h")


def _bytes(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    return None if text is None else int(_quantity(text, _BYTES, "size: write 4096, 64K, 256M or 1G"))


def _quantity(text: str, units: dict[str, float] | dict[str, int], what: str) -> float:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise click.BadParameter(f"{text!r} is no {what}")
    return float(found[1]) * units[found[2]]


_LIMITS: Final = (
    ("--wall", "wall_seconds", "Time from start to end; then the whole tree is ended at once: exit 124."),
    ("--cpu", "cpu_seconds", "CPU time of the whole tree; then it is ended at once."),
    ("--memory", "memory_bytes", "Address space of each process, and (by cgroup) the whole tree's memory."),
    ("--processes", "processes", "Further processes: with --threads, as many more tasks as both together."),
    ("--threads", "threads", "Threads that it may start: starting one fails beyond."),
    ("--open-files", "open_files", "Descriptors of each process: opening fails beyond."),
    ("--file", "file_bytes", "Size of a file that it writes."),
    (
        "--output",
        "output_bytes",
        "What is kept of a captured stream, half head, half tail; it may print more.",
    ),
    ("--result", "result_bytes", "Size of a result."),
    ("--result-items", "result_items", "Values in a result, containers counted too."),
    ("--grace", "grace_seconds", "How long each step of a cancel waits for it to end by itself."),
)


def shared(command: Command) -> Command:
    """Adds the shared options; the limits arrive as keywords, named like the fields of `Limits`."""
    for flag, name, text in reversed(_LIMITS):
        if name.endswith("_seconds"):
            option = click.option(flag, name, metavar="TIME", callback=_seconds, help=text)
        elif name.endswith("_bytes"):
            option = click.option(flag, name, metavar="SIZE", callback=_bytes, help=text)
        else:
            option = click.option(flag, name, metavar="N", type=int, help=text)
        command = option(command)
    status = click.option(
        "--status-fd",
        metavar="N",
        type=int,
        is_eager=True,
        expose_value=False,
        callback=take_status,
        help="Descriptor for one line of JSON that tells our exit codes from the command's.",
    )
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Print the whole outcome as one line of JSON, for machines."
    )
    profile = click.option(
        "--profile", metavar="PROFILE", help="Name or path of the profile to run under [default: none]."
    )
    return profile(as_json(status(command)))
