"""Bounds of one child. Two sets of them meet by intersection: what both allow."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

from sandbox_exec.errors import ConfigError

_MOST: Final = 1 << 62
_MAY_BE_ZERO: Final = {"processes", "threads", "output_bytes", "grace_seconds", "file_bytes"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one child. None: the profile's, and in a profile: no bound.

    Attributes:
        wall_seconds: from Run to the end; then the tree is ended at once.
        cpu_seconds: user and system time of the whole tree; then it is ended at once.
        memory_bytes: address space of each process (RLIMIT_AS): a MemoryError in the one that exceeds it.
        processes: how many more processes the child may start, and
        threads: how many more threads. The kernel counts both as tasks: the tree may have as many more as
            the two together, one that is not given counting as 0, and the call that exceeds that fails.
        open_files: descriptors of each process.
        file_bytes: size of a file that it writes.
        output_bytes: how much of each stream is *kept*, half of it head and half tail.
        result_bytes: text of a result or partial result.
        result_items: values in it, containers counted too.
        grace_seconds: how long each rung of the cancel ladder waits.
    """

    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    threads: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    output_bytes: int | None = None
    result_bytes: int | None = None
    result_items: int | None = None
    grace_seconds: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name))

    @property
    def tasks(self) -> int | None:
        """How many more tasks the tree may have, processes and threads together; None: no bound."""
        if self.processes is None and self.threads is None:
            return None
        return (self.processes or 0) + (self.threads or 0)

    def tightened(self, by: Limits) -> Limits:
        """These limits with `by`'s, which may only be tighter.

        Raises:
            ConfigError: one would widen what these allow.
        """
        if not isinstance(by, Limits):
            raise ConfigError(f"limits must be Limits(...), not {by!r:.200}")
        merged: dict[str, float | int | None] = {}
        for item in fields(self):
            own, asked = getattr(self, item.name), getattr(by, item.name)
            if asked is not None and own is not None and asked > own:
                msg = f"{item.name}={asked} would widen the profile's {own}: limits can only be tightened"
                raise ConfigError(msg)
            merged[item.name] = own if asked is None else asked
        limits = Limits(**merged)  # type: ignore[arg-type]  # the names are the fields'
        # The kernel counts one sum: threads=9 beside a profile's processes=1 would make it ten.
        if self.tasks is not None and (limits.tasks or 0) > self.tasks:
            msg = (
                f"processes={limits.processes} and threads={limits.threads} together would widen "
                f"the profile's {self.tasks}: limits can only be tightened"
            )
            raise ConfigError(msg)
        return limits

    def intersected(self, other: Limits) -> Limits:
        """What both allow: of each bound the tighter one."""
        merged: dict[str, float | int | None] = {}
        for item in fields(self):
            given = [getattr(limits, item.name) for limits in (self, other)]
            merged[item.name] = min((value for value in given if value is not None), default=None)
        limits = Limits(**merged)  # type: ignore[arg-type]  # the names are the fields'
        sums = [tasks for tasks in (self.tasks, other.tasks) if tasks is not None]
        if sums and (limits.tasks or 0) > min(sums):
            processes = min(limits.processes or 0, *sums)
            limits = replace(limits, processes=processes, threads=min(sums) - processes)
        return limits


def _check(name: str, value: object) -> None:
    if value is None:
        return
    whole = not name.endswith("_seconds")
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds:
        msg = f"{name} must be {'a whole number' if whole else 'a number'}, not {value!r}"
        raise ConfigError(msg)
    assert isinstance(value, int | float)
    if not math.isfinite(value) or value < 0 or value > _MOST or (value == 0 and name not in _MAY_BE_ZERO):
        msg = f"{name}={value!r} can mean nothing: give a positive number, or None for the profile's own"
        raise ConfigError(msg)
