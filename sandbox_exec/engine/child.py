"""One child, as its holder sees it. Every method may be called from any thread."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from sandbox_exec.engine.events import EventLog
from sandbox_exec.engine.outcome import Event, Outcome, Usage
from sandbox_exec.engine.states import CancelAsked, KillAsked, SubagentState
from sandbox_exec.errors import ExecutorClosed
from sandbox_worker import protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterator

    from sandbox_exec.engine.process import ChildProcess
    from sandbox_exec.engine.ward import Ward
    from sandbox_exec.engine.warden import Warden


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Receipt:
    """What became of one steer. True while it was not refused.

    Attributes:
        text: what was sent.
        status: "pending", then "taken" (the child holds it) or "missed"; or "refused" at once.
        reason: why it was refused.
    """

    __slots__ = ("reason", "status", "text")

    def __init__(self, text: str, status: str = "pending", reason: str = "") -> None:
        self.text, self.status, self.reason = text, status, reason

    def __bool__(self) -> bool:
        return self.status != "refused"

    def __repr__(self) -> str:
        return f"Receipt({self.status!r}{f', {self.reason}' if self.reason else ''})"


class Child:
    """A running instance of the worker. Made by `SandboxExecutor.launch`.

    Attributes:
        id: unique, such as "sa-0-1a2b3c4d".
        name: what `launch` was given, or the target's own name.
        pid: of the process that runs the target, None before it exists; kept after the end.
        degraded: preferred layers that this host could not apply.
    """

    __slots__ = (
        "__weakref__",
        "_accepting",
        "_at_end",
        "_log",
        "_outcome",
        "_pending",
        "_process",
        "_serial",
        "_state",
        "_waiters",
        "_ward",
        "_warden",
        "degraded",
        "id",
        "name",
        "pid",
    )  # fmt: skip

    def __init__(self, ward: Ward, identity: str, name: str) -> None:
        self.id, self.name = identity, name
        self.pid: int | None = None
        self.degraded: tuple[str, ...] = ()
        self._process: ChildProcess | None = None
        self._ward = ward
        self._warden: Warden | None = None
        self._state = SubagentState.PENDING
        self._outcome: Outcome | None = None
        self._waiters: list[threading.Event] | None = None
        self._at_end: list[Callable[[], None]] = []
        self._log = EventLog(ward.lock)
        self._accepting = True
        self._pending: dict[int, Receipt] | None = None
        self._serial = 0

    def __repr__(self) -> str:
        return f"<Child {self.id} {self.name!r} {self.state} pid {self.pid}>"

    @property
    def state(self) -> SubagentState:
        """Where its life stands."""
        return self._state

    @property
    def alive(self) -> bool:
        """True until its end is published."""
        return self._outcome is None

    @property
    def process(self) -> ChildProcess:
        """The same child as a `multiprocess` process object, always the same one."""
        from sandbox_exec.engine.process import ChildProcess  # 50 ms, for those who ask

        with self._ward.lock:
            if self._process is None:
                self._process = ChildProcess(self)
            return self._process

    def outcome(self, timeout: float | None = None) -> Outcome:
        """Waits for the end.

        Args:
            timeout: seconds; None waits for ever. It bounds the caller only.

        Raises:
            TimeoutError: it has not ended in time; the child is untouched.
        """
        if self._outcome is None and not self._wait(timeout):
            msg = f"{self.id} is still {self.state} after {timeout} s; it goes on"
            raise TimeoutError(msg)
        assert self._outcome is not None
        return self._outcome

    def _wait(self, timeout: float | None) -> bool:
        with self._ward.lock:
            if self._outcome is not None:
                return True
            if self._ward.abandoned:
                msg = f"{self.id} belongs to the process that this one was forked from"
                raise ExecutorClosed(msg)
            waiter = threading.Event()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
        waiter.wait(None if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))
        with self._ward.lock:
            if waiter in (self._waiters or ()):
                self._waiters.remove(waiter)
        return self._outcome is not None

    async def wait(self) -> Outcome:
        """Waits for the end, from asyncio; cancelling the waiting task leaves the child alone."""
        import asyncio

        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
                loop.call_soon_threadsafe(_set, ended)

        self._call_at_end(tell)
        try:
            await ended
        finally:
            self._forget_at_end(tell)
        return self.outcome()

    def __await__(self) -> Generator[object, None, Outcome]:
        """Waits for the end; cancelling the awaiting task cancels the child."""
        return self._wait_or_cancel().__await__()

    async def _wait_or_cancel(self) -> Outcome:
        import asyncio

        try:
            return await self.wait()
        except asyncio.CancelledError:
            self.cancel("the task that awaited it was cancelled")
            raise

    def _call_at_end(self, call: Callable[[], None]) -> None:
        """Runs `call`, which must be quick and must not raise, once: on the loop at the end, or now."""
        with self._ward.lock:
            if self._outcome is None:
                self._at_end.append(call)
                return
        call()

    def _forget_at_end(self, call: Callable[[], None]) -> None:
        with self._ward.lock:
            if call in self._at_end:
                self._at_end.remove(call)

    def steer(self, text: str) -> Receipt:
        """Sends a text for the child's next boundary.

        Returns:
            A receipt, false if it was refused: blank, over 16,000 characters, 64 pending, or too late.
            Accepted means: it ends as taken or missed, and missed texts are in the outcome.
        """
        if type(text) is not str or not text.strip():
            return Receipt("", "refused", "a steer is a text that is not blank")
        if len(text) > protocol.MAX_STEER_CHARACTERS:
            return Receipt(text, "refused", f"over {protocol.MAX_STEER_CHARACTERS:,} characters")
        with self._ward.lock:
            if not self._accepting or self._warden is None:
                return Receipt(text, "refused", "this child takes no more steers")
            if self._pending is None:
                self._pending = {}
            if len(self._pending) >= protocol.MAX_STEERS_PENDING:
                return Receipt(text, "refused", f"{protocol.MAX_STEERS_PENDING} are pending already")
            self._serial += 1
            receipt = self._pending[self._serial] = Receipt(text)
            self._ward.broker.post(self._warden.flush_steers)  # under the lock: in the order of acceptance
        return receipt

    def cancel(self, reason: str = "") -> bool:
        """Asks the child to end, and climbs the ladder if it does not: at most 2 x grace + 1 s.

        Returns:
            True if it was live; at once, in any case.
        """
        warden = self._warden
        if self._outcome is not None or warden is None:
            return False
        words = str(reason)[:500]
        self._ward.broker.post(lambda: warden.cancel(CancelAsked(), words))
        return True

    def kill(self) -> bool:
        """SIGKILL for the whole tree, now. True if it was live."""
        warden = self._warden
        if self._outcome is not None or warden is None:
            return False
        broker = self._ward.broker
        # Known before the death can be, and struck at once: the loop may be at another child, and awake it
        # would be in the way.
        broker.lay(lambda: warden.cancel(KillAsked(), ""))
        try:
            warden.strike()
        finally:
            broker.wake()
        return True

    def _pass(self, number: int) -> None:
        """A signal for the command, and where a keyboard sends it (SIGINT, SIGQUIT) for its process group."""
        warden = self._warden
        if warden is not None:
            self._ward.broker.post(lambda: warden.pass_signal(number))

    def events(self) -> Iterator[Event]:
        """Follows the child until its end, from its beginning; what was lost to the bound is counted."""
        return iter(self._log)

    def usage(self) -> Usage:
        """What it used until now, or in the end."""
        if self._outcome is not None:
            return self._outcome.usage
        warden = self._warden
        return warden.usage() if warden is not None else Usage()

    # The warden's side, on the loop.

    def _unsent(self, after: int) -> list[tuple[int, str]]:
        with self._ward.lock:
            return [
                (number, receipt.text) for number, receipt in (self._pending or {}).items() if number > after
            ]

    def _take(self, numbers: list[int], sent: int) -> bool:
        """Marks steers as taken; False if one was never sent, or already taken."""
        with self._ward.lock:
            for number in numbers:
                receipt = self._pending.pop(number, None) if self._pending and number <= sent else None
                if receipt is None:
                    return False
                receipt.status = "taken"
        return True

    def _close_steering(self) -> None:
        with self._ward.lock:
            self._accepting = False

    def _missed(self) -> tuple[str, ...]:
        """Closes the account: whatever was accepted and not taken is missed."""
        with self._ward.lock:
            self._accepting = False
            missed, self._pending = self._pending or {}, None
            for receipt in missed.values():
                receipt.status = "missed"
        return tuple(receipt.text for receipt in missed.values())

    def _abandon(self) -> None:
        """In a forked copy of the host: nothing reaches the child from here any more."""
        self._accepting, self._warden, self._waiters = False, None, None
        self._log = EventLog(self._ward.lock)
        self._log.close()

    def _publish(self, outcome: Outcome) -> None:
        with self._ward.lock:
            self._outcome, self._state, self._warden = outcome, outcome.state, None
            waiters, self._waiters = self._waiters or [], None
            at_end, self._at_end = self._at_end, []
        self._log.close()
        for waiter in waiters:
            waiter.set()
        for call in at_end:
            call()
