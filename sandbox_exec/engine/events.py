"""The story of a child as its caller may follow it: bounded, every iterator complete from the start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from sandbox_exec.engine.outcome import Event

KEEP_EVENTS: Final = 1_000
KEEP_BYTES: Final = 1 << 20
OVERHEAD_BYTES: Final = 200  # of an event in the log, beside its data


class _Entry(msgspec.Struct, gc=False):
    """An event as it is kept: what thousands of them hold would otherwise be traversed again and again."""

    source: str
    kind: str
    at: float
    data: dict[str, object]
    size: int


class EventLog:
    """The last events of one child. Loop and callers meet under the executor's lock."""

    __slots__ = ("_bytes", "_closed", "_entries", "_first", "_lock", "_news")

    def __init__(self, lock: threading.Lock | threading.RLock) -> None:
        self._lock = lock
        self._entries: list[_Entry] = []
        self._first = 0  # number of the first that is kept
        self._bytes = 0
        self._closed = False
        self._news: threading.Condition | None = None  # made for the first who waits

    def add(self, source: str, kind: str, data: dict[str, object], data_bytes: int = 0) -> None:
        """Appends an event of now, and forgets the oldest beyond the bound. On the loop."""
        size = OVERHEAD_BYTES + data_bytes
        self._entries.append(_Entry(source, kind, time.time(), data, size))  # noqa: TID251 for people
        self._bytes += size
        if len(self._entries) > KEEP_EVENTS or self._bytes > KEEP_BYTES:
            with self._lock:
                self._forget()
        # Without the lock until here: who waits has set `_news` before looking, so either they saw the
        # entry or they are told.
        if self._news is not None:
            with self._lock:
                self._news.notify_all()

    def _forget(self) -> None:
        # A quarter at once, so that a flood pays for it rarely.
        gone = max(1, len(self._entries) // 4)
        self._bytes -= sum(entry.size for entry in self._entries[:gone])
        del self._entries[:gone]
        self._first += gone

    def close(self) -> None:
        """No more will come."""
        with self._lock:
            self._closed = True
            if self._news is not None:
                self._news.notify_all()

    def __iter__(self) -> Iterator[Event]:
        return _Following(self)

    def last(self, source: str) -> Event | None:
        """The newest event of this source that is kept; from any thread."""
        with self._lock:
            for entry in reversed(self._entries):
                if entry.source == source:
                    return Event(entry.source, entry.kind, entry.at, entry.data)
        return None

    def after(self, number: int) -> tuple[int, Event] | None:
        """Waits for the first event from `number` on; None when no more will come."""
        with self._lock:
            if self._news is None:
                self._news = threading.Condition(self._lock)
            while number - self._first >= len(self._entries):
                if self._closed:
                    return None
                self._news.wait()
            dropped = max(0, self._first - number)
            number += dropped
            entry = self._entries[number - self._first]
        return number, Event(entry.source, entry.kind, entry.at, entry.data, dropped)


class _Following:
    """One caller's place in a log."""

    __slots__ = ("_log", "_next")

    def __init__(self, log: EventLog) -> None:
        self._log, self._next = log, 0

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        found = self._log.after(self._next)
        if found is None:
            raise StopIteration
        self._next = found[0] + 1
        return found[1]
