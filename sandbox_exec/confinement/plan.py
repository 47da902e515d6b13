"""A profile compiled for one launch: what the launcher and the worker are told, ready-made."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from sandbox_exec.confinement.profile import Limits, Profile

# As the host program was given it: an executor may raise its own, and select() fails beyond 1,024.
_FILES: Final = resource.getrlimit(resource.RLIMIT_NOFILE)
_OWN_TASKS: Final = 2  # init and the worker


@dataclass(frozen=True, slots=True)
class Plan:
    """What one child is held to. It contains no user data.

    Attributes:
        limits: the resolved limits.
        rlimits: (resource, soft, hard) for the launcher.
        may_fork: whether the child may start programs: then its tree gets an init of its own.
        degraded: preferred layers that this host cannot apply, known before the launch.
    """

    limits: Limits
    rlimits: tuple[tuple[int, int, int], ...]
    may_fork: bool = True
    degraded: tuple[str, ...] = ()


def compile_plan(profile: Profile, asked: Limits | None = None) -> Plan:
    """Compiles a profile, tightened by what one launch asks.

    Raises:
        ConfigError: the launch would widen the profile.
    """
    limits = profile.limits.tightened(asked) if asked is not None else profile.limits
    return Plan(limits, rlimits(limits))


def rlimits(limits: Limits) -> tuple[tuple[int, int, int], ...]:
    """The rlimits of a child's processes. Every one of them fails a call; only RLIMIT_CPU ends."""
    wanted: list[tuple[int, int, int]] = [(resource.RLIMIT_CORE, 0, 0)]
    if limits.memory_bytes is not None:
        wanted.append((resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes))
    if limits.cpu_seconds is not None:
        # Per process and in whole seconds: the net under the host's own count of the tree's time.
        seconds = int(limits.cpu_seconds) + 1
        wanted.append((resource.RLIMIT_CPU, seconds, seconds + 1))
    files = _FILES if limits.open_files is None else (limits.open_files, limits.open_files)
    wanted.append((resource.RLIMIT_NOFILE, *files))
    if limits.file_bytes is not None:
        wanted.append((resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes))
    if limits.processes is not None or limits.threads is not None:
        tasks = (limits.processes or 0) + (limits.threads or 0) + _OWN_TASKS
        wanted.append((resource.RLIMIT_NPROC, tasks, tasks))
    return tuple(wanted)
