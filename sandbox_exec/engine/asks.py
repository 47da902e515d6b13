"""A child's request for a host tool: granted? valid? then run it off the loop, and never for ever.

Only what the host holds for this child counts; the name on the wire is a look-up, nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Final

from sandbox_exec.engine.broker import Broker, Deadline
from sandbox_exec.engine.payload import packed
from sandbox_exec.engine.pool import Pool
from sandbox_exec.toolsets.arguments import Invalid
from sandbox_exec.toolsets.tool import Tool
from sandbox_worker import protocol

if TYPE_CHECKING:
    from sandbox_exec.engine.child import Child

MAX_ABANDONED: Final = 32
THREADS: Final = 8
MAX_REASON: Final = 1_000  # characters

Answer = Callable[[bytes, bool], None]
"""Takes the answer's frame, and whether the ask was denied. On the loop."""

_asking: ContextVar[Child | None] = ContextVar("asking", default=None)


def asking_child() -> Child | None:
    """The live child that asked for the host tool in which the caller runs, or None.

    A launch made there must not wait for a slot: the child whose end would make one room may be waiting
    for this very tool. A thread that the tool starts itself is not known to be the tool's.
    """
    child = _asking.get()
    return child if child is not None and child.alive else None


class Asks:
    """Runs host tools for all children of an executor."""

    def __init__(self, broker: Broker, clock: Callable[[], float]) -> None:
        self._broker, self._clock = broker, clock
        self._pool = Pool("tool", THREADS)
        self._abandoned = 0
        self._lock = threading.Lock()  # between a call's beginning and its being given up

    def run(
        self,
        child: Child,
        grants: Mapping[str, Tool],
        number: int,
        name: str,
        args: dict[str, object],
        answer: Answer,
    ) -> None:
        """Answers one ask, now or later; on the loop."""
        tool = grants.get(name)
        if tool is None:
            why = f"the tool {name!r} is not granted to this child"
            answer(_refusal(number, protocol.DENIED, why), True)
        elif self._abandoned >= MAX_ABANDONED:
            why = f"{MAX_ABANDONED} calls of host tools hang already: no more are begun"
            answer(_refusal(number, protocol.FAILED, why), False)
        else:
            _Call(self, child, tool, number, name, answer).start(args)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.close()


class _Call:
    """One call under way: answered once, by its end or by its deadline, whichever comes first."""

    __slots__ = (
        "_answer", "_asks", "_begun", "_child", "_deadline", "_name", "_number", "_tool", "_withdrawn",
    )  # fmt: skip

    def __init__(self, asks: Asks, child: Child, tool: Tool, number: int, name: str, answer: Answer) -> None:
        self._asks, self._child, self._tool = asks, child, tool
        self._number, self._name = number, name
        self._answer: Answer | None = answer
        self._deadline: Deadline | None = None
        self._begun = self._withdrawn = False

    def start(self, args: dict[str, object]) -> None:
        broker, asks = self._asks._broker, self._asks  # noqa: SLF001 one module, one reason
        self._deadline = broker.call_at(asks._clock() + self._tool.timeout_seconds, self._give_up)  # noqa: SLF001
        # An empty context: what a tool sets in it does not last until the thread's next tool.
        if not asks._pool.submit(lambda: Context().run(self._perform, args)):  # noqa: SLF001
            self._done(_refusal(self._number, protocol.FAILED, "the host has no thread for it"), denied=False)

    def _perform(self, args: dict[str, object]) -> None:
        """On a pool thread."""
        with self._asks._lock:  # noqa: SLF001
            if self._withdrawn:  # it was answered as failed: then it must not happen either
                return
            self._begun = True
        _asking.set(self._child)
        status, payload = self._answered(args)
        frame = protocol.pack(protocol.Down.ANSWER, self._number, status, payload)
        self._asks._broker.post(lambda: self._done(frame, denied=status == protocol.DENIED))  # noqa: SLF001

    def _answered(self, args: dict[str, object]) -> tuple[str, object]:
        """Status and payload. Valid is decided here, for a type's own code may have a part in it."""
        try:
            try:
                valid = self._tool.checked(args)
            except Invalid as error:
                why = f"the arguments of {self._name!r} are not valid: {error}"
                return protocol.DENIED, why[:MAX_REASON]
            value = self._tool.call(**valid)
        except BaseException as error:  # noqa: BLE001 whatever a tool raises is the child's answer: sys.exit too
            return protocol.FAILED, _in_words(error)
        try:
            return protocol.ANSWERED, packed(value)
        except BaseException as error:  # noqa: BLE001 its __reduce__ is the tool's code as well
            return protocol.FAILED, f"what {self._name!r} returned cannot be sent: {_in_words(error)}"

    def _done(self, frame: bytes, *, denied: bool) -> None:
        if self._answer is None:  # it was given up: the thread is back
            self._asks._abandoned -= 1  # noqa: SLF001
            return
        if self._deadline is not None:
            self._deadline.cancel()
        answer, self._answer = self._answer, None
        answer(frame, denied)

    def _give_up(self) -> None:
        if self._answer is None:
            return
        with self._asks._lock:  # noqa: SLF001
            self._withdrawn = not self._begun
        seconds = f"{self._tool.timeout_seconds:g} s"
        if self._withdrawn:
            why = f"the tool {self._name!r} was not begun within {seconds}: every thread for tools is busy"
        else:
            self._asks._abandoned += 1  # noqa: SLF001
            self._asks._pool.replace()  # noqa: SLF001
            why = f"the tool {self._name!r} did not answer within {seconds}"
        answer, self._answer = self._answer, None
        answer(_refusal(self._number, protocol.FAILED, why), False)


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MAX_REASON]
    except Exception:  # noqa: BLE001 a __str__ that raises
        return type(error).__name__


def _refusal(number: int, status: str, why: str) -> bytes:
    return protocol.pack(protocol.Down.ANSWER, number, status, why)
