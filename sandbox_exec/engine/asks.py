"""A child's request for a host tool: granted? valid? then run it off the loop, and never for ever.

Only what the host holds for this child counts; the name on the wire is a look-up, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sandbox_exec.engine.broker import Broker, Deadline
from sandbox_exec.engine.payload import packed
from sandbox_exec.engine.pool import Pool
from sandbox_worker import protocol

MAX_ABANDONED: Final = 32
THREADS: Final = 8

Answer = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function of the host that a child may ask for.

    Attributes:
        call: runs in the host, on a thread that is not the loop; gets the child's arguments by keyword.
        timeout_seconds: after this the ask is answered as failed and the call is given up.
    """

    call: Callable[..., object]
    timeout_seconds: float = 30.0


class Asks:
    """Runs host tools for all children of an executor."""

    def __init__(self, broker: Broker, clock: Callable[[], float]) -> None:
        self._broker, self._clock = broker, clock
        self._pool = Pool("tool", THREADS)
        self._abandoned = 0

    def run(
        self, grants: Mapping[str, Tool], number: int, name: str, args: dict[str, object], answer: Answer
    ) -> bool:
        """Answers one ask, now or later; on the loop. False if it was denied."""
        tool = grants.get(name)
        if tool is None:
            answer(_refusal(number, protocol.DENIED, f"the tool {name!r} is not granted to this child"))
            return False
        if self._abandoned >= MAX_ABANDONED:
            why = f"{MAX_ABANDONED} calls of host tools hang already: no more are begun"
            answer(_refusal(number, protocol.FAILED, why))
            return True
        _Call(self, tool, number, name, answer).start(args)
        return True

    def close(self) -> None:
        """Ends the threads."""
        self._pool.close()


class _Call:
    """One call under way: answered once, by its end or by its deadline, whichever comes first."""

    __slots__ = ("_answer", "_asks", "_deadline", "_name", "_number", "_tool")

    def __init__(self, asks: Asks, tool: Tool, number: int, name: str, answer: Answer) -> None:
        self._asks, self._tool, self._number, self._name = asks, tool, number, name
        self._answer: Answer | None = answer
        self._deadline: Deadline | None = None

    def start(self, args: dict[str, object]) -> None:
        broker, asks = self._asks._broker, self._asks  # noqa: SLF001 one module, one reason
        self._deadline = broker.call_at(asks._clock() + self._tool.timeout_seconds, self._give_up)  # noqa: SLF001
        if not asks._pool.submit(lambda: self._perform(args)):  # noqa: SLF001
            self._done(_refusal(self._number, protocol.FAILED, "the host has no thread for it"))

    def _perform(self, args: dict[str, object]) -> None:
        """On a pool thread."""
        try:
            value = self._tool.call(**args)
            frame = protocol.pack(protocol.Down.ANSWER, self._number, protocol.ANSWERED, packed(value))
        except Exception as error:  # noqa: BLE001 whatever a tool raises is the child's answer
            frame = _refusal(self._number, protocol.FAILED, f"{type(error).__name__}: {error}"[:1000])
        self._asks._broker.post(lambda: self._done(frame))  # noqa: SLF001

    def _done(self, frame: bytes) -> None:
        if self._answer is None:  # it was given up: the thread is back
            self._asks._abandoned -= 1  # noqa: SLF001
            return
        if self._deadline is not None:
            self._deadline.cancel()
        answer, self._answer = self._answer, None
        answer(frame)

    def _give_up(self) -> None:
        if self._answer is None:
            return
        self._asks._abandoned += 1  # noqa: SLF001
        self._asks._pool.replace()  # noqa: SLF001
        answer, self._answer = self._answer, None
        why = f"the tool {self._name!r} did not answer within {self._tool.timeout_seconds:g} s"
        answer(_refusal(self._number, protocol.FAILED, why))


def _refusal(number: int, status: str, why: str) -> bytes:
    return protocol.pack(protocol.Down.ANSWER, number, status, why)
