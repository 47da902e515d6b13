"""How many children this host can hold at once: asked before an executor is made, told with the figure."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox_exec.errors import ConfigError

DESCRIPTORS_A_CHILD: Final = 6  # channel, pidfds of init and worker, stdout, stderr, init's status pipe
OWN_DESCRIPTORS: Final = 64
TASKS_A_CHILD: Final = 2  # init and worker
OWN_TASKS: Final = 16  # threads, launcher, clones made ahead
BYTES_A_CHILD: Final = 3_500_000  # measured: 3.8 MB of MemAvailable for an idle one
OWN_BYTES: Final = 32_000_000


@dataclass(frozen=True, slots=True)
class Room:
    """One thing that children need, and how much of it there is."""

    what: str
    there: int
    own: int
    each: int

    def check(self, children: int) -> None:
        """Refuses more than fit.

        Raises:
            ConfigError: it names what is short, how much would be needed, and how many children fit.
        """
        needed = self.own + children * self.each
        if needed > self.there:
            fits = max(0, (self.there - self.own) // self.each)
            msg = f"max_children={children} needs {needed:,} {self.what}, there are {self.there:,}"
            raise ConfigError(f"{msg}: {fits:,} fit")


def make_room(children: int) -> None:
    """Checks that so many children fit, and raises RLIMIT_NOFILE as far as they need.

    Raises:
        ConfigError: they do not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = Room("descriptors (ulimit -Hn)", _finite(hard), OWN_DESCRIPTORS, DESCRIPTORS_A_CHILD)
    for room in (files, *_tasks(), *_memory()):
        room.check(children)
    if soft != resource.RLIM_INFINITY and files.own + children * files.each > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tasks() -> list[Room]:
    found = [
        ("processes (kernel.pid_max)", _number("/proc/sys/kernel/pid_max")),
        ("tasks (kernel.threads-max)", _number("/proc/sys/kernel/threads-max")),
        *(("processes (pids.max of the cgroup)", _number(file)) for file in _pids_max()),
    ]
    if os.geteuid() != 0:  # the kernel does not count root's
        found.append(("processes (ulimit -u)", _finite(resource.getrlimit(resource.RLIMIT_NPROC)[1])))
    return [Room(what, there, OWN_TASKS, TASKS_A_CHILD) for what, there in found if there is not None]


def _pids_max() -> list[str]:
    """Of v1 or v2, as far as the cgroup's own directory is to be seen."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    places = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in {"", "pids"}:
            root = "/sys/fs/cgroup/pids" if controllers else "/sys/fs/cgroup"
            places.append(f"{root}{path.rstrip('/')}/pids.max")
    return places


def _memory() -> list[Room]:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return [Room("bytes of memory", total, OWN_BYTES, BYTES_A_CHILD)] if total > 0 else []


def _number(file: str) -> int | None:
    try:
        return int(Path(file).read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there; "max"
        return None


def _finite(limit: int) -> int:
    return limit if limit != resource.RLIM_INFINITY else 1 << 62
