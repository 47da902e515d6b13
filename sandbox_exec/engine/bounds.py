"""The cgroup of a child that has limits to be kept for its whole tree, made while its worker boots.

A join can wait 10 to 20 ms for the kernel, so it is never on the loop, and never in the way of a child
without such limits. What binds is recorded, and what does not is the child's `degraded`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sandbox_exec.engine.cgroups import discover

if TYPE_CHECKING:
    from sandbox_exec.confinement.profile import Limits
    from sandbox_exec.engine.group import Group
    from sandbox_exec.engine.ward import Ward

OWN_TASKS: Final = 2  # init and the worker


class Bounds:
    """The limits of one child that its cgroup keeps. All methods but `join`'s work belong to the loop."""

    __slots__ = ("_closed", "_group", "_identity", "_limits", "_lock", "_ward")

    def __init__(self, ward: Ward, identity: str, limits: Limits) -> None:
        self._ward, self._identity, self._limits = ward, identity, limits
        self._group: Group | None = None
        self._closed = False
        self._lock = threading.Lock()  # a child can be gone before its group is made

    @staticmethod
    def needed(limits: Limits) -> bool:
        """Whether these limits ask for a cgroup at all."""
        # cpu_seconds: a fork chain that ignores SIGCHLD leaves its time to nobody but a cgroup.
        wanted = limits.memory_bytes is not None or limits.cpu_seconds is not None
        return wanted or _tasks(limits) is not None

    def join(self, pids: tuple[int, ...], then: Callable[[str], None]) -> None:
        """Makes the group, moves these processes in, and calls `then` on the loop with what went wrong."""

        def work() -> None:
            wrong = ""
            try:
                if discover().gives:
                    limits = self._limits
                    group = discover().create(
                        self._identity, memory_bytes=limits.memory_bytes, tasks=_tasks(limits)
                    )
                    with self._lock:
                        self._group = None if self._closed else group
                    if self._group is None:
                        _remove(group)
                    else:
                        group.join(*pids)
            except OSError as error:
                wrong = f"its cgroup cannot be made: {error}"
            self._ward.broker.post(lambda: then(wrong))

        if not self._ward.pool.submit(work):
            then("no thread to make its cgroup on: see ulimit -u")

    def degraded(self, *, contained: bool) -> tuple[str, ...]:
        """The limits that do not bind this child's tree here."""
        applied = self._group.applied if self._group is not None else frozenset()
        missing = []
        if self._limits.memory_bytes is not None and "memory" not in applied:
            missing.append("memory of the tree")
        # RLIMIT_NPROC binds one child alone only in a user namespace of its own, and never uid 0.
        own_count = contained and os.geteuid() != 0
        if _tasks(self._limits) is not None and "pids" not in applied and not own_count:
            missing.append("processes")
        return tuple(missing)

    def out_of_memory(self) -> bool:
        """Whether the kernel killed one of its processes at its own memory limit."""
        return self._group is not None and self._group.oom_kills() > 0

    def cpu_seconds(self) -> float | None:
        """The whole tree's time, dead or alive; None where nothing counts it."""
        return self._group.cpu_seconds() if self._group is not None else None

    def close(self) -> None:
        """Removes the group, off the loop. Its processes are gone."""
        with self._lock:
            self._closed = True
            group, self._group = self._group, None
        if group is not None:
            self._ward.pool.submit(lambda: _remove(group))


def _remove(group: Group) -> None:
    with contextlib.suppress(OSError):  # what is left is removed with the next executor's start
        group.kill(0.0)
        group.remove()


def _tasks(limits: Limits) -> int | None:
    if limits.processes is None and limits.threads is None:
        return None
    return (limits.processes or 0) + (limits.threads or 0) + OWN_TASKS
