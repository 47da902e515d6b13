"""A submitted job as `concurrent.futures` knows it: a view of one child.

The stdlib's future stays PENDING inside until the child has ended, for only so can a running one still be
cancelled by its public methods; `running` asks the child instead.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Final, TypeVar

from sandbox_exec.engine.states import SubagentState
from sandbox_exec.errors import ExecutorClosed

if TYPE_CHECKING:
    from sandbox_exec.engine.child import Child
    from sandbox_exec.engine.outcome import Outcome

T = TypeVar("T")
LEAVE_QUEUE_SECONDS: Final = 1.0  # a cancelled child leaves the queue in the loop's next pass


class ChildFuture(Future[T]):
    """The future of a submitted job. Made by `SandboxExecutor.submit`.

    Attributes:
        child: the child that runs the job.
    """

    def __init__(self, child: Child, perform: Callable[[Callable[[], None]], bool]) -> None:
        super().__init__()
        self.child = child
        self._perform = perform  # runs a job on another thread than the loop; False if it cannot
        self._callbacks_lock = threading.Lock()
        self._callbacks: list[Callable[[Future[T]], object]] | None = []

    def cancel(self) -> bool:
        """Ends the job, a running one too, by the ladder of `Child.cancel`; returns at once.

        Returns:
            False if it was over already. True does not mean that it is: `cancelled` tells, once the end is
            proven, and a result that arrived before it counts.
        """
        if self.done():
            return self.cancelled()
        accepted = self.child.cancel("its future was cancelled")
        until = time.monotonic() + LEAVE_QUEUE_SECONDS
        # One that never started is cancelled when this returns, as with other executors.
        while self.child.state is SubagentState.PENDING and time.monotonic() < until:
            time.sleep(0.0005)
        if self.child.state is SubagentState.CANCELLED:
            while not self.done() and time.monotonic() < until:
                time.sleep(0.0005)
        return accepted or self.cancelled()

    def result(self, timeout: float | None = None) -> T:
        """The value.

        Raises:
            ChildFailed, ChildInterrupted: see `Outcome.exception`.
            concurrent.futures.CancelledError: it was cancelled.
            TimeoutError: it is not over in so many seconds; the job is untouched.
            ExecutorClosed: this process is a fork of the one that submitted it.
        """
        self._require_own_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` raises, None for a job that succeeded; raises as `result` does otherwise."""
        self._require_own_process()
        return super().exception(timeout)

    def _require_own_process(self) -> None:
        if self.child._ward.abandoned and not self.done():  # noqa: SLF001 one object in two halves
            msg = f"{self.child.id} belongs to the process that this one was forked from"
            raise ExecutorClosed(msg)

    def running(self) -> bool:
        """True from the child's start to its end."""
        return not self.done() and self.child.state is not SubagentState.PENDING

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Calls `fn(future)` when the job is over, on a thread of the executor; at once if it is.

        Callbacks run in the order in which they were added, and may submit, or wait for, further jobs.
        """
        with self._callbacks_lock:
            if self._callbacks is not None:
                self._callbacks.append(fn)
                return
        self._call(fn)

    def end(self) -> None:
        """The child has ended. On the loop, once."""
        with contextlib.suppress(InvalidStateError, RuntimeError):  # its holder has set it already
            self._settle(self.child.outcome())
        with self._callbacks_lock:
            callbacks, self._callbacks = self._callbacks or [], None
        if callbacks and not self._perform(lambda: self._call_all(callbacks)):
            self._call_all(callbacks)  # no thread is to be had: better here than never

    def _settle(self, outcome: Outcome) -> None:
        if outcome.state is SubagentState.CANCELLED:
            super().cancel()
            self.set_running_or_notify_cancel()
            return
        self.set_running_or_notify_cancel()
        if outcome.error is not None:
            self.set_exception(outcome.exception())
        else:
            self.set_result(outcome.value)  # type: ignore[arg-type]  # what the target promised

    def _call_all(self, callbacks: list[Callable[[Future[T]], object]]) -> None:
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except BaseException:
            logging.getLogger("concurrent.futures").exception("exception calling callback for %r", self)
