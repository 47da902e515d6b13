"""A profile compiled for one launch: what the launcher and the worker are told, ready-made."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandbox_exec.confinement.limits import Limits
from sandbox_exec.confinement.policy import APPLIED, Profile, refusal
from sandbox_exec.errors import ConfigError, ProfileError
from sandbox_worker import protocol

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


def compile_plan(profile: Profile, asked: Limits | None = None, policies: Sequence[str] = ()) -> Plan:
    """Compiles a profile, tightened by what one launch asks.

    Args:
        profile: it has no wall: others cannot be loaded yet.
        asked: tighter limits.
        policies: the toolsets that the child holds and whose grant is a kernel policy. Without a wall it can
            do already what they would open, and more: the grant is no lie, but it bounds nothing. So it is
            taken, as profile "none" is the control in tests of a wall, and named as degraded.

    Raises:
        ConfigError: the launch would widen the profile, or a limit is beyond the host's own.
        ProfileError: the profile requires layers, which this version cannot apply.
    """
    if (reason := refusal(profile)) is not None:
        raise ProfileError(reason)
    limits = profile.limits.tightened(asked) if asked is not None else profile.limits
    limits = replace(
        limits,  # what a profile leaves open is bounded all the same: the host decodes results
        result_bytes=limits.result_bytes or protocol.DEFAULT_RESULT_BYTES,
        result_items=limits.result_items or protocol.DEFAULT_RESULT_ITEMS,
    )
    missing = tuple(layer for layer in profile.prefer if layer not in APPLIED)
    opened = tuple(f"toolset {name}" for name in policies)
    return Plan(limits, rlimits(limits), degraded=missing + opened)


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
    if limits.tasks is not None:
        tasks = limits.tasks + _OWN_TASKS
        wanted.append((resource.RLIMIT_NPROC, tasks, tasks))
    for which, soft, _ in wanted:
        _check_hard_limit(which, soft)
    return tuple(wanted)


def _check_hard_limit(which: int, value: int) -> None:
    """Refuses what setrlimit would refuse in the child; root may raise all but the number of descriptors."""
    hard = resource.getrlimit(which)[1]
    if os.geteuid() == 0:
        hard = _most_files() if which == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY
    if hard != resource.RLIM_INFINITY and value > hard:
        name, letter = _HARD[which]
        msg = f"{name}={value} is above this host's hard limit of {hard} (ulimit -H{letter}): ask for less"
        raise ConfigError(msg)


_HARD: Final = {
    resource.RLIMIT_AS: ("memory_bytes", "v"),
    resource.RLIMIT_CPU: ("cpu_seconds", "t"),
    resource.RLIMIT_NOFILE: ("open_files", "n"),
    resource.RLIMIT_FSIZE: ("file_bytes", "f"),
    resource.RLIMIT_NPROC: ("processes and threads", "u"),
    resource.RLIMIT_CORE: ("core", "c"),
}


def _most_files() -> int:
    try:
        return int(Path("/proc/sys/fs/nr_open").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return resource.RLIM_INFINITY
