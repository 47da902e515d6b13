"""The limits of one child that are watched by the clock: wall, cpu of the tree, memory of the tree."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from sandbox_exec.engine.states import Cause, LimitHit

if TYPE_CHECKING:
    from sandbox_exec.confinement.profile import Limits
    from sandbox_exec.engine.bounds import Bounds
    from sandbox_exec.engine.broker import Broker, Command, Deadline
    from sandbox_exec.engine.reaper import Process

CPU_SECONDS: Final = 0.05  # between two samples, at the least
MEMORY_SECONDS: Final = 0.1


class Clocks:
    """Timers of one child, on the loop.

    Attributes:
        cpu_seconds: what its tree had used when it was looked at last.
    """

    __slots__ = ("_bounds", "_broker", "_feed", "_limits", "_pending", "cpu_seconds")

    def __init__(
        self, broker: Broker, limits: Limits, bounds: Bounds | None, feed: Callable[[LimitHit], None]
    ) -> None:
        self._broker, self._limits, self._bounds, self._feed = broker, limits, bounds, feed
        self._pending: list[Deadline] = []
        self.cpu_seconds = 0.0

    def start(self, process: Process) -> None:
        """From Run on."""
        limits = self._limits
        if limits.wall_seconds is not None:
            self.after(limits.wall_seconds, partial(self._feed, LimitHit(Cause.WALL)))
        if limits.cpu_seconds is not None:
            self._sample_cpu(process, limits.cpu_seconds)
        if limits.memory_bytes is not None and self._bounds is not None:
            self._sample_memory(self._bounds)

    def after(self, seconds: float, call: Command) -> None:
        """Runs `call` then, unless all is cancelled."""
        self._pending = [deadline for deadline in self._pending if deadline.call is not None]
        self._pending.append(self._broker.call_at(time.monotonic() + seconds, call))

    def cancel(self) -> None:
        """Nothing more is watched; idempotent."""
        for deadline in self._pending:
            deadline.cancel()
        self._pending = []

    def _sample_cpu(self, process: Process, most: float) -> None:
        """Looks again when the limit could be reached at the earliest."""
        counted = self._bounds.cpu_seconds() if self._bounds is not None else None
        self.cpu_seconds = process.cpu_seconds() if counted is None else counted
        left = most - self.cpu_seconds
        if left <= 0:
            self._feed(LimitHit(Cause.CPU))
        else:
            wait = max(CPU_SECONDS, left / (os.cpu_count() or 1))
            self.after(wait, partial(self._sample_cpu, process, most))

    def _sample_memory(self, bounds: Bounds) -> None:
        """Where the kernel killed only one process of a tree that was out of memory, all of it ends."""
        if bounds.out_of_memory():
            self._feed(LimitHit(Cause.MEMORY))
        else:
            self.after(MEMORY_SECONDS, partial(self._sample_memory, bounds))
