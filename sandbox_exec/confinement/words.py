"""A profile in words that a security reader can check, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from textwrap import wrap
from typing import Final

from sandbox_exec.confinement.limits import Limits
from sandbox_exec.confinement.policy import APPLIED, Profile, refusal
from sandbox_exec.errors import ToolsetError

WIDTH: Final = 100
_LABELS: Final = {
    "wall_seconds": ("wall time", "then the whole tree is ended at once"),
    "cpu_seconds": ("cpu time of the tree", "then the whole tree is ended at once"),
    "memory_bytes": ("memory", "address space of each process, and of the tree where cgroups can be made"),
    "processes": ("further processes", "with further threads, one sum: a fork or thread beyond it fails"),
    "threads": ("further threads", "see further processes"),
    "open_files": ("open files", "of each process; opening more fails"),
    "file_bytes": ("size of a file", "that it writes; writing more fails"),
    "output_bytes": ("kept of each stream", "half head, half tail; it may print more"),
    "result_bytes": ("size of a result", "a larger one fails it"),
    "result_items": ("values in a result", "more fail it"),
    "grace_seconds": ("grace", "how long each step of a cancel waits"),
}
_NO_WALL: Final = (
    "There is no kernel wall in this version. A child has all the rights of the user who starts it: it can "
    "read and write that user's files, use the network, start programs, and signal or trace that user's "
    "other processes. Do not run code that you do not trust."
)
_REFUSED: Final = "There is no kernel wall in this version. So nothing can be launched under this profile:"
_GETS: Final = (
    "a process of its own, in which a fresh interpreter starts; for a command, that program",
    "as its directory the host's, or what the launch says; as its input what the launch gives, then its end",
    "the standard library and the installed packages, to import",
    "one channel to the host: plain data goes up, and nothing of it is unpickled or evaluated",
)
_GETS_NOT: Final = (
    "memory, locks, threads or open descriptors of the host, though without a wall it could go and look",
    "any other environment variable of the host, except those that the launch adds by name",
    "a host tool, unless it belongs to a toolset that the launch grants",
    "a life beyond the host's, or its own result's: its tree is ended with either",
)
# What each will open once there is a wall to open it in.
TOOLSETS: Final = {
    "file": "the workspace, to read and write, without running what is written there",
    "web": "requests that the host makes for it; no socket of its own",
    "terminal": "starting programs from named directories, in a pid namespace and a mount namespace",
    "code": "starting our own interpreter, in a pid namespace",
}


def explained(profile: Profile, toolsets: Iterable[str] = ()) -> str:
    """See `Profile.explain`."""
    named = None if isinstance(toolsets, str) else list(toolsets)
    if named is None or not all(type(name) is str for name in named):
        raise ToolsetError(f"toolsets must be a collection of names, not {toolsets!r:.200}")
    return "\n".join(_lines(profile, named)) + "\n"


def amount(name: str, value: float | None) -> str:
    """A limit's value in human units; exact."""
    if value is None:
        return "no bound"
    if name.endswith("_seconds"):
        return _time(value)
    return _size(int(value)) if name.endswith("_bytes") else f"{value:,}"


def _lines(profile: Profile, toolsets: list[str]) -> Iterator[str]:
    yield f"Profile {profile.name}{': ' + profile.description if profile.description else ''}"
    if profile.source:
        yield f"  file    {profile.source}"
    yield f"  digest  {profile.digest}"
    yield ""
    reason = refusal(profile)
    yield from wrap(_NO_WALL if reason is None else f"{_REFUSED} {reason}", WIDTH)
    if reason is not None:
        yield "What follows is what it asks for."
    yield ""
    yield "A child gets"
    passed = ", ".join(profile.environment)
    yield from _items([*_GETS, f"of the host's environment, where set: {passed or 'nothing'}"])
    yield "It is not handed"
    yield from _items(_GETS_NOT)
    yield ""
    yield "Limits, which a launch can only tighten"
    for item in fields(Limits):
        label, meaning = _LABELS[item.name]
        value = getattr(profile.limits, item.name)
        if value is None and item.name in {"processes", "threads"} and profile.limits.tasks is not None:
            value = 0  # the other one is given, and the sum counts
        yield f"  {label:<21} {amount(item.name, value):<10}{'' if value is None else ' ' + meaning}".rstrip()
    yield "  No bound is none of ours: the host's own still hold. Where one of ours does not bind on a host,"
    yield "  the child's degraded names it."
    yield ""
    yield from _start(profile)
    yield from _layers(profile)
    if toolsets:
        yield ""
        yield "Toolsets: without a wall the kernel holds nothing back from a child that has none of them."
        yield "Behind a wall each would open:"
        for name in toolsets:
            yield from _items([f"{name}: {TOOLSETS.get(name, 'nothing in the kernel')}"])


def _start(profile: Profile) -> Iterator[str]:
    yield "Start"
    if profile.start == "exec":
        yield from _items(["exec: a fresh interpreter for every child, with its own layout of memory"])
    else:
        yield from _items(
            [f"{profile.start} is asked for; in this version every child starts by exec, the tighter way"]
        )


def _layers(profile: Profile) -> Iterator[str]:
    yield "Kernel layers"
    had = [layer for layer in profile.prefer if layer in APPLIED]
    missing = [layer for layer in profile.prefer if layer not in APPLIED]
    require = ", ".join(profile.require)
    lines = [f"required: {require} (not to be had in this version)" if require else "required: none"]
    if had:
        lines.append(f"preferred, and applied where the host can: {', '.join(had)}")
    if missing:
        lines.append(
            f"preferred, but not to be had in this version, so named in degraded: {', '.join(missing)}"
        )
    if not profile.prefer:
        lines.append("preferred: none")
    yield from _items(lines)


def _items(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from wrap(text, WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _time(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length:,.0f} {unit}"
    return f"{seconds:,g} s" if seconds >= 1 or not seconds else f"{seconds * 1000:g} ms"


def _size(count: int) -> str:
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count and count % (1 << shift) == 0:
            return f"{count >> shift:,} {unit}"
    return f"{count:,} bytes"
