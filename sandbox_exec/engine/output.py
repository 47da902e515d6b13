"""What a child prints: the first half of the bound, the last half, and an exact count of the rest.

Chatter never kills a child and never blocks it for ever: each pipe gets its share of the loop's turns,
and past the head only a ring of the tail is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sandbox_exec.engine.broker import Broker

READ_BYTES: Final = 65_536
SMALL_BYTES: Final = 4_096  # pieces of the tail below this are joined
FLOOD_PIPE_BYTES: Final = 1 << 18  # of a pipe whose head is full: fewer wake-ups for the same bytes
# A pipe holds 64 KiB, at most 1 MiB (pipe-max-size); without a namespace a writer may outlive its tree.
_LAST_TURNS: Final = 32


@dataclass(frozen=True, slots=True)
class Output:
    """One stream of a child, bounded.

    Attributes:
        head, tail: the first and the last bytes; the tail is empty while everything fits the head.
        total_bytes: how many the child wrote.
        dropped_bytes: how many of them, between head and tail, were not kept.
    """

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0
    dropped_bytes: int = 0

    @property
    def text(self) -> str:
        """Head and tail as UTF-8, with replacement characters, and a line that counts what is missing."""
        if not self.dropped_bytes:
            return (self.head + self.tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self.head, self.tail))
        return f"{head}\n[... {self.dropped_bytes} bytes left out ...]\n{tail}"


class Capture:
    """The reading end of one output pipe, on the loop."""

    __slots__ = ("_broker", "_fd", "_half", "_head", "_tail", "_tail_bytes", "_total")

    def __init__(self, broker: Broker, fd: int, keep_bytes: int) -> None:
        self._broker, self._fd, self._half = broker, fd, keep_bytes // 2
        self._head = b""
        self._tail: deque[bytes] | None = None  # the last pieces; together at least the tail
        self._tail_bytes = self._total = 0

    def open(self) -> None:
        """Begins to read."""
        self._broker.watch(self._fd, self._turn)

    def _turn(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Reads a bounded share; False if nothing was there."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._keep(data)
        if len(data) >= SMALL_BYTES:
            self._broker.sated(self._fd)
        return True

    def _keep(self, data: bytes) -> None:
        self._total += len(data)
        if len(self._head) < self._half:
            room = self._half - len(self._head)
            self._head += data[:room]
            data = data[room:]
        if not data or not self._half:
            return
        if self._tail is None:
            self._tail = deque()
            with contextlib.suppress(OSError):  # the user's share of pipe memory is used up
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, FLOOD_PIPE_BYTES)
        if self._tail and len(self._tail[-1]) + len(data) <= SMALL_BYTES:
            last = self._tail.pop()
            self._tail_bytes -= len(last)
            data = last + data
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            self._tail_bytes -= len(self._tail.popleft())

    def finish(self) -> Output:
        """Reads what is left in the pipe and closes it. The writers are gone, or cut off here."""
        for _ in range(_LAST_TURNS):
            if self._fd < 0 or not self._read():
                break
        self.close()
        tail = b"".join(self._tail or ())
        tail = tail[max(0, len(tail) - self._half) :]
        head, self._head, self._tail = self._head, b"", None
        return Output(head, tail, self._total, self._total - len(head) - len(tail))

    def abandon(self) -> None:
        """Closes the reading end in a forked copy of the host."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Closes the reading end; idempotent."""
        if self._fd >= 0:
            self._broker.forget(self._fd)
            os.close(self._fd)
            self._fd = -1


def pipe(broker: Broker, keep_bytes: int) -> tuple[Capture, int]:
    """A capture and the writing end for the child."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(ours, False)
    return Capture(broker, ours, keep_bytes), theirs
