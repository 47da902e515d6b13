"""The cgroup of one child: what bounds its whole tree, counts for it and can end it.

In every hierarchy that it needs, under one name. The limits bind what cannot write to a hierarchy, as code
behind the wall. Without a wall, a child of root, or of the user to whom the hierarchy was delegated, can
leave its group.

Everything here blocks. After a pause a join waits 10 to 20 ms until every processor has passed a quiet
point (RCU); those that follow within milliseconds, in any hierarchy, take 0.05 ms.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from typing import Final

from sandbox_exec.engine.hierarchies import Files, Hierarchy

# What v1 and v2 call it.
_LIMIT: Final = "memory.limit_in_bytes", "memory.max"
_SWAP: Final = "memory.memsw.limit_in_bytes", "memory.swap.max"
_PEAK: Final = "memory.max_usage_in_bytes", "memory.peak"
_ONE_ALLOCATION: Final = 8 * os.sysconf("SC_PAGE_SIZE")  # for larger ones nothing is killed
_GONE: Final = {errno.ENOENT, errno.ENODEV}


class Group:
    """The group of one child, in every hierarchy that it needs. Made by `Cgroups.create`.

    Attributes:
        name: of its folder in each.
        applied: what binds: "memory" and "pids" limit, "cpu" counts.
    """

    __slots__ = ("_files", "_places", "applied", "name")

    def __init__(self, files: Files, places: list[Hierarchy], name: str, applied: frozenset[str]) -> None:
        self._files, self.name, self.applied = files, name, applied
        self._places = [(place, f"{place.base}/{name}") for place in places]

    def make(self, memory_bytes: int, tasks: int) -> None:
        """Makes the folders and sets the limits that are applied.

        Raises:
            OSError: one step was refused. Nothing is left behind.
        """
        made: list[str] = []
        try:
            for hierarchy, path in self._places:
                self._files.make(path)
                made.append(path)
                if "memory" in hierarchy.gives & self.applied:
                    self._limit_memory(path, hierarchy.version, memory_bytes)
                if "pids" in hierarchy.gives & self.applied:
                    self._files.write(f"{path}/pids.max", str(tasks))
        except OSError:
            for path in made:
                self._files.unmake(path)
            raise

    def _limit_memory(self, path: str, version: int, most: int) -> None:
        files = self._files
        files.write(f"{path}/{_LIMIT[version - 1]}", str(most))
        with contextlib.suppress(FileNotFoundError):  # the kernel does not count swap
            files.write(f"{path}/{_SWAP[version - 1]}", str((most, 0)[version - 1]))  # v1: of the sum
        if version == 2:
            files.write(f"{path}/memory.oom.group", "1")
        elif "oom_kill_disable 1" in files.read(f"{path}/memory.oom_control"):
            files.write(f"{path}/memory.oom_control", "0")  # it was inherited: at the limit all would hang

    def join(self, *pids: int) -> None:
        """Moves these processes in, whole; what they start from now on is born in it.

        Memory that they have already stays on the host's account.

        Raises:
            OSError: one was not moved (ProcessLookupError: it is gone), or not in every hierarchy.
        """
        for pid in pids:
            for _, path in self._places:
                self._files.write(f"{path}/cgroup.procs", str(pid))

    def pids(self) -> set[int]:
        """The processes in it, and in groups that they made below; not what has ended, reaped or not."""
        found: set[int] = set()
        for _, path in self._places:
            for folder in self._files.groups(path):
                with contextlib.suppress(FileNotFoundError):
                    found.update(self._files.members(folder))
        return found

    def oom_kills(self) -> int:
        """How many of its processes were killed for want of memory, if it reached its own limit; else 0.

        Page cache, tmpfs and kernel memory count towards the limit. At the limit v1 kills the largest
        process, v2 all of them, and counts one of them twice. Killed below the limit: the machine was out
        of memory, and that is not counted.
        """
        if (found := self._place("memory")) is None:
            return 0
        version, path = found
        if version == 2:
            events = f"{path}/memory.events"
            reached = bool(self._figure(events, "oom"))
        else:
            events = f"{path}/memory.oom_control"
            reached = any(map(self._was_full, (f"{path}/memory", f"{path}/memory.memsw")))
        return (self._figure(events, "oom_kill") or 0) if reached else 0

    def _was_full(self, counter: str) -> bool:
        """Whether a counter of v1 was ever at its limit; its failcnt does not count (Linux 6.18)."""
        most, limit = (self._figure(f"{counter}.{what}_in_bytes") for what in ("max_usage", "limit"))
        return most is not None and limit is not None and most > limit - _ONE_ALLOCATION

    def cpu_seconds(self) -> float | None:
        """User and system time of all that was ever in it, dead or alive; None: not counted, or removed."""
        if (found := self._place("cpu")) is None:
            return None
        version, path = found
        name, key, unit = (("cpuacct.usage", "", 1e9), ("cpu.stat", "usage_usec", 1e6))[version - 1]
        used = self._figure(f"{path}/{name}", key)
        return None if used is None else used / unit

    def peak_memory_bytes(self) -> int | None:
        """The most that it held at once; None: not counted (v2 before Linux 5.19), or removed."""
        if (found := self._place("memory")) is None:
            return None
        version, path = found
        return self._figure(f"{path}/{_PEAK[version - 1]}")

    def kill(self, seconds: float = 10.0) -> bool:
        """SIGKILL for everything in it; False: it is in no hierarchy, or something runs on after so long.

        Raises:
            OSError: a hierarchy cannot be written, or descriptors are short.
        """
        for hierarchy, path in self._places:
            with contextlib.suppress(FileNotFoundError):
                if "pids" in hierarchy.gives & self.applied:
                    self._files.write(f"{path}/pids.max", "0")  # nothing new is born while we look
                if hierarchy.version == 2:
                    self._files.write(f"{path}/cgroup.kill", "1")  # from Linux 5.14 on
        until, pause = time.monotonic() + seconds, 0.0005
        while left := self.pids():
            for pid in left:
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
                # Read after pidfd_open: this very process is meant, not one that got its number since.
                if self.name in re.split("[/\n]", self._files.read(f"/proc/{pid}/cgroup")):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)  # noqa: TID251 what cgroup.kill does on v2
            finally:
                os.close(fd)

    def remove(self, attempts: int = 8) -> bool:
        """Removes it, idempotent; False: after a quarter of a second something still runs in it.

        Raises:
            OSError: for another reason than that.
        """
        for attempt in range(attempts):
            try:
                for _, path in self._places:
                    for folder in self._files.groups(path):
                        self._files.unmake(folder)
                return True
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            time.sleep(0.001 * (1 << attempt))  # the last of them may still be on its way out
        return False

    def _place(self, kind: str) -> tuple[int, str] | None:
        """Version and folder of the hierarchy that gives this."""
        places = [(place.version, path) for place, path in self._places if kind in place.gives & self.applied]
        return places[0] if places else None

    def _figure(self, path: str, key: str = "") -> int | None:
        """One figure of a file of `key figure` lines, or of one figure alone; None: there is none."""
        try:
            lines = self._files.read(path).splitlines()
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        return {name: int(value) for name, _, value in (line.rpartition(" ") for line in lines)}.get(key)
