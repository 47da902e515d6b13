"""A child as `multiprocess` and its ecosystem know a process: sentinel, exitcode, join, active_children.

Never waits for a pid: all of it is told by the child's outcome, hence once its whole tree is gone.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, NoReturn

from multiprocess import process

from sandbox_exec.errors import ConfigError

if TYPE_CHECKING:
    from sandbox_exec.engine.child import Child


class ChildProcess(process.BaseProcess):  # type: ignore[misc]  # it has no types
    """A process object for a child that was launched. Made by `Child.process`.

    `terminate` cancels and `kill` kills the child. `exitcode` is 0 for SUCCEEDED alone, -n for signal n, and
    the exit code or 1 for all else. It is a daemon: it ends with its host.
    """

    def __init__(self, child: Child) -> None:
        super().__init__(name=child.name, daemon=True)
        self._popen = _Popen(child)
        self._sentinel = self._popen.sentinel
        process._children.add(self)  # noqa: SLF001 what start() does
        child._call_at_end(_Bell(self))  # noqa: SLF001 one object in two halves

    def start(self) -> NoReturn:
        """It was started by its launch.

        Raises:
            ConfigError: always.
        """
        msg = "a child is started by its launch: its process object is for watching and ending it"
        raise ConfigError(msg)


class _Popen:
    """What `BaseProcess` asks of the platform."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.sentinel = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.close = weakref.finalize(self, os.close, self.sentinel)
        self.close.atexit = False  # the loop rings until the executor is closed, which may be later

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def poll(self, _flag: int = 0) -> int | None:
        """The exit code, None while it lives."""
        if self._child.alive:
            return None
        outcome = self._child.outcome()
        if outcome.error is None:
            return 0
        return -outcome.exit.signal if outcome.exit.signal else outcome.exit.code or 1

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the end; None if it has not come in time."""
        try:
            self._child.outcome(timeout)
        except TimeoutError:
            return None
        return self.poll()

    def terminate(self) -> None:
        self._child.cancel()

    def kill(self) -> None:
        self._child.kill()


class _Bell:
    """Rings at the end, for a process object that is still there: the child must not keep it."""

    def __init__(self, of: ChildProcess) -> None:
        self._of = weakref.ref(of)

    def __call__(self) -> None:
        ended = self._of()
        if ended is None:
            return
        process._children.discard(ended)  # noqa: SLF001 what join() does
        popen: _Popen | None = ended._popen  # noqa: SLF001
        if popen is not None and popen.close.alive:
            os.eventfd_write(popen.sentinel, 1)
