"""Limits that the kernel keeps for one child's whole tree, on hosts that can have them.

    discover() -> Cgroups.create(identity) -> Group.join(pids), before Run -> kill() -> remove()

What a host can have is found by doing: a group is made, limited, read and removed again. Each limit comes
from the hierarchy that has it, and what is missing has its reason.

The limits bind what cannot write to a hierarchy, as code behind the wall. Without a wall, a child of root,
or of the user to whom the hierarchy was delegated, can leave its group.

Everything here blocks, so nothing of it is for the loop. After a pause a join waits 10 to 20 ms until every
processor has passed a quiet point; those that follow within milliseconds, in any hierarchy, take 0.05 ms.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sandbox_exec.engine.hierarchies import PREFIX, Files, Hierarchy, find, named

# What v1 and v2 call it.
_LIMIT: Final = "memory.limit_in_bytes", "memory.max"
_SWAP: Final = "memory.memsw.limit_in_bytes", "memory.swap.max"
_PEAK: Final = "memory.max_usage_in_bytes", "memory.peak"
_DOOR: Final = "tasks", "cgroup.procs"
_GONE: Final = {errno.ENOENT, errno.ENODEV}
_PROBE: Final = 64 << 20, 16  # bytes and tasks


class Group:
    """The group of one child, in every hierarchy that it needs.

    Attributes:
        applied: what binds: "memory" and "pids" limit, "cpu" counts.
    """

    __slots__ = ("_files", "_places", "applied", "name")

    def __init__(
        self, files: Files, hierarchies: list[Hierarchy], name: str, applied: frozenset[str]
    ) -> None:
        self._files, self.name, self.applied = files, name, applied
        self._places = [(hierarchy, f"{hierarchy.base}/{name}") for hierarchy in hierarchies]

    def open(self, memory_bytes: int | None, tasks: int | None) -> None:
        """Makes it and sets its limits; see `Cgroups.create`."""
        write = self._files.write
        for hierarchy, path in self._places:
            self._files.make(path)
            which = hierarchy.version - 1
            if "memory" in hierarchy.gives & self.applied:
                write(f"{path}/{_LIMIT[which]}", str(memory_bytes))
                with contextlib.suppress(FileNotFoundError):  # a kernel that does not count swap
                    write(f"{path}/{_SWAP[which]}", str((memory_bytes, 0)[which]))
                if hierarchy.version == 2:
                    write(f"{path}/memory.oom.group", "1")
                elif "oom_kill_disable 1" in self._files.read(f"{path}/memory.oom_control"):
                    write(f"{path}/memory.oom_control", "0")  # inherited: at its limit the tree would hang
            if "pids" in hierarchy.gives & self.applied:
                write(f"{path}/pids.max", str(tasks))

    def join(self, *pids: int) -> None:
        """Moves these processes in, all their threads too; what they start from now on is born in it.

        Memory that they have already stays on the host's account.

        Raises:
            OSError: one could not be moved (ProcessLookupError: it is gone), and may be in some of the
                hierarchies only.
        """
        for pid in pids:
            for _, path in self._places:
                self._files.write(f"{path}/cgroup.procs", str(pid))

    def doors(self) -> list[int]:
        """Descriptors, the caller's to close: a process of one thread that writes b"0" to each is in.

        On v1 that takes no lock, so none of the 10 ms of `join`.
        """
        with contextlib.ExitStack() as undo:
            fds = []
            for hierarchy, path in self._places:
                with named("opening a cgroup's file", door := f"{path}/{_DOOR[hierarchy.version - 1]}"):
                    fds.append(os.open(door, os.O_WRONLY | os.O_CLOEXEC))
                undo.callback(os.close, fds[-1])
            undo.pop_all()
        return fds

    def pids(self) -> set[int]:
        """The processes in it and in the groups that they made; not what has ended, reaped or not."""
        found: set[int] = set()
        for _, path in self._places:
            for folder in self._files.groups(path):
                with contextlib.suppress(FileNotFoundError):
                    found.update(self._files.members(folder))
        return found

    def oom_kills(self) -> int:
        """How many of its processes were killed for want of memory since it reached its own limit.

        Page cache, tmpfs and kernel memory count towards the limit. On v1 the kernel kills the largest
        process of the group, on v2 all of them. Killed below its limit: the whole machine was out of memory.
        """
        if (found := self._place("memory")) is None:
            return 0
        version, path = found
        if version == 2:
            events = self._numbers(f"{path}/memory.events")
            return events["oom_kill"] if events["oom"] else 0
        hits = [int(self._files.read(f"{path}/memory.failcnt"))]
        with contextlib.suppress(FileNotFoundError):
            hits.append(int(self._files.read(f"{path}/memory.memsw.failcnt")))
        return self._numbers(f"{path}/memory.oom_control").get("oom_kill", 0) if any(hits) else 0

    def cpu_seconds(self) -> float | None:
        """User and system time of all that was ever in it, dead or alive; None: not counted, or removed."""
        if (found := self._place("cpu")) is None:
            return None
        version, path = found
        if version == 2:
            used = self._figure(f"{path}/cpu.stat", "usage_usec")
            return None if used is None else used / 1e6
        used = self._figure(f"{path}/cpuacct.usage")
        return None if used is None else used / 1e9

    def peak_memory_bytes(self) -> int | None:
        """The most that it held at once; None: not counted (v2 before Linux 5.19), or removed."""
        found = self._place("memory")
        return None if found is None else self._figure(f"{found[1]}/{_PEAK[found[0] - 1]}")

    def kill(self, seconds: float = 2.0) -> bool:
        """SIGKILL for everything in it; False: after so many seconds something still runs."""
        at_once = False
        for hierarchy, path in self._places:
            with contextlib.suppress(FileNotFoundError):  # removed, or no cgroup.kill: before Linux 5.14
                if hierarchy.version == 2:
                    self._files.write(f"{path}/cgroup.kill", "1")
                    at_once = True
                elif "pids" in hierarchy.gives & self.applied:
                    self._files.write(f"{path}/pids.max", "0")  # nothing new is born while we look
        until, pause = time.monotonic() + seconds, 0.0005
        while left := self.pids():
            for pid in () if at_once else left:
                self._end(pid)
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return bool(self._places)

    def _end(self, pid: int) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                # Looked up after pidfd_open: this very process is meant, not one that got its number since.
                if f"/{self.name}" in self._files.read(f"/proc/{pid}/cgroup"):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)  # noqa: TID251 one tree: what cgroup.kill does
            finally:
                os.close(fd)

    def remove(self, attempts: int = 8) -> bool:
        """Removes it, idempotent; False: after 0.1 s something still runs in it."""
        pause = 0.001
        for _ in range(attempts):
            try:
                for _, path in self._places:
                    for folder in self._files.groups(path):
                        self._files.unmake(folder)
                return True
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            time.sleep(pause)
            pause *= 2
        return False

    def _place(self, what: str) -> tuple[int, str] | None:
        if what in self.applied:
            for hierarchy, path in self._places:
                if what in hierarchy.gives:
                    return hierarchy.version, path
        return None

    def _numbers(self, path: str) -> dict[str, int]:
        return {key: int(value) for key, value in map(str.split, self._files.read(path).splitlines())}
