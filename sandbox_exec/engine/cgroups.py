"""Limits that the kernel keeps for one child's whole tree, on hosts that can have them.

    discover() -> Cgroups.create(identity) -> Group.join(pids), before Run -> Group.kill() -> Group.remove()

What a host can have is found by doing: a group is made, limited, read and removed again. Each limit comes
from the hierarchy that has it, and what is missing has its reason. Everything here blocks: not on the loop.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import replace

from sandbox_exec.engine.group import Group
from sandbox_exec.engine.hierarchies import KINDS, PREFIX, Files, Hierarchy, find


class Cgroups:
    """What this host can have, and the maker of groups.

    Attributes:
        gives: those of "memory", "pids" and "cpu" that its groups have.
        missing: why they do not have the others, for people.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._hierarchies: list[Hierarchy] = []
        self.gives: frozenset[str] = frozenset()
        candidates, missing = find(files)
        for place in candidates:
            gives = frozenset(kind for kind in place.gives - self.gives if self._prove(place, kind, missing))
            if gives:
                self.gives |= gives
                self._hierarchies.append(replace(place, gives=gives))
                with contextlib.suppress(PermissionError):  # groups may be made in it, but not listed
                    self._remove_stale(place.base)
        self.missing: Mapping[str, str] = {kind: missing[kind] for kind in KINDS if kind not in self.gives}

    def create(self, identity: str, *, memory_bytes: int | None = None, tasks: int | None = None) -> Group:
        """Makes an empty group.

        Args:
            identity: the child's id; no other group of this host process has it.
            memory_bytes: the most that the tree may hold, swapped out or not.
            tasks: how many threads its processes may have in all, the first ones included.

        Raises:
            OSError: what could be done at the discovery cannot be done now. Nothing is left behind.
        """
        asked = {"memory": memory_bytes is not None, "pids": tasks is not None, "cpu": True}
        applied = frozenset(kind for kind in self.gives if asked[kind])
        places = [place for place in self._hierarchies if place.gives & applied]
        group = Group(self._files, places, _mark(self._files) + identity, applied)
        group.make(memory_bytes or 0, tasks or 0)
        return group

    def _prove(self, place: Hierarchy, kind: str, missing: dict[str, str]) -> bool:
        group = Group(self._files, [place], f"{_mark(self._files)}probe", frozenset({kind}))
        try:
            group.make(64 << 20, 16)
            try:
                group.oom_kills()
                if kind == "cpu" and group.cpu_seconds() is None:
                    raise OSError(errno.ENOENT, "it counts no processor time", place.base)
            finally:
                group.remove()
        except OSError as error:
            missing[kind] = str(error)
            return False
        return True

    def _remove_stale(self, base: str) -> None:
        """Removes empty groups of hosts that have died; of this pid namespace, for only those are known."""
        for name in os.listdir(base):
            mark = re.fullmatch(rf"{PREFIX}-(\d+)-(\d+)-(\d+)-.*", name)
            if mark and int(mark[1]) == _namespace() and self._files.process(int(mark[2]))[1] != int(mark[3]):
                with contextlib.suppress(OSError):  # not empty
                    for folder in self._files.groups(f"{base}/{name}"):
                        self._files.unmake(folder)


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _mark(files: Files) -> str:
    """What this host process's groups begin with."""
    pid = os.getpid()
    return f"{PREFIX}-{_namespace()}-{pid}-{files.process(pid)[1]}-"


class _Once:
    """The discovery of this process; a forked copy makes its own."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.lock = threading.Lock()  # another thread may have held it at the fork
        self.found: Cgroups | None = None


_once = _Once()
os.register_at_fork(after_in_child=_once.reset)


def discover() -> Cgroups:
    """What this host can have. The first call does blocking file work; the others are free."""
    with _once.lock:
        if _once.found is None:
            _once.found = Cgroups(Files())
        return _once.found
