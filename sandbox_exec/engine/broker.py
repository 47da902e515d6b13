"""The loop: one thread that waits for every child at once. It never runs user code.

A turn: wait for descriptors · handle the urgent (deaths, commands, timers) · give every source on the
*ready list* one turn, bounded in frames and bytes. Edge-triggered, so a source that was cut short stays
on the list instead of asking epoll again; what is not read stays in the kernel, and that is the child's
back-pressure. Draining a flooding child until EAGAIN delayed another's event by 125 ms in the median;
with 16 frames a turn it is 0.1.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

Command = Callable[[], None]


class Source(Protocol):
    """Something behind a descriptor."""

    def turn(self) -> bool:
        """Handles a bounded share of what is there; True if there may be more."""


class Deadline:
    """A pending call at a monotonic time. Cancel it by `cancel`."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Command) -> None:
        self.at = at
        self.call: Command | None = call

    def cancel(self) -> None:
        """The call will not happen. The heap drops the husk when its time comes."""
        self.call = None


class Broker:
    """The loop thread. All its methods but `post`, `alive` and `close` belong to that thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._sources: dict[int, Source] = {}
        self._urgent: dict[int, Command] = {}
        self._ready: dict[int, Source] = {}  # insertion-ordered: first come, first served
        self._commands: deque[Command] = deque()
        self._timers: list[tuple[float, int, Deadline]] = []
        self._order = itertools.count()
        self._husks = 0
        self._stopping = False
        self.scratch: Final = bytearray(1 << 17)  # every source reads into it, one at a time
        self._thread = threading.Thread(target=self._run, name="sandbox-exec broker", daemon=True)
        self._thread.start()

    # From any thread.

    def post(self, command: Command) -> None:
        """Runs `command` on the loop soon."""
        self._commands.append(command)
        # Always: an eventfd write costs less than the race of asking whether the loop is awake.
        with contextlib.suppress(OSError):  # closed: nobody is left to run it
            os.eventfd_write(self._wake, 1)

    @property
    def on_loop(self) -> bool:
        """True when the caller runs on the loop thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Ends the thread; idempotent."""

        def stop() -> None:
            self._stopping = True

        if self._thread.is_alive():
            self.post(stop)
            if not self.on_loop:
                self._thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Closes the descriptors without a word to the thread: after a fork there is none."""
        if self._wake >= 0:
            self._epoll.close()
            os.close(self._wake)
            self._wake = -1

    # On the loop.

    def watch(self, fd: int, source: Source) -> None:
        """Gives `source` turns when `fd` is readable or hung up."""
        self._sources[fd] = source
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def watch_writable(self, fd: int, *, on: bool) -> None:
        """Adds or drops interest in `fd` being writable."""
        interest = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
        self._epoll.modify(fd, interest | select.EPOLLOUT if on else interest)

    def watch_end(self, fd: int, command: Command) -> None:
        """Runs `command` at once when `fd` (a pidfd) becomes readable; once."""
        self._urgent[fd] = command
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def forget(self, fd: int) -> None:
        """No more turns for `fd`; to be called before it is closed."""
        self._ready.pop(fd, None)
        if self._sources.pop(fd, None) is not None or self._urgent.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def call_at(self, at: float, call: Command) -> Deadline:
        """Runs `call` at this time of `time.monotonic`."""
        deadline = Deadline(at, call)
        heapq.heappush(self._timers, (at, next(self._order), deadline))
        if len(self._timers) > 64 and len(self._timers) > 4 * len(self._sources) + 64:
            self._timers = [t for t in self._timers if t[2].call is not None]
            heapq.heapify(self._timers)
        return deadline

    def soon(self, source: Source, fd: int) -> None:
        """Puts a source on the ready list without waiting for epoll."""
        self._ready[fd] = source

    def _run(self) -> None:
        while not self._stopping:
            self._wait()
            while self._commands:
                self._commands.popleft()()
            self._fire()
            for fd, source in list(self._ready.items()):
                if fd in self._ready and not source.turn():
                    self._ready.pop(fd, None)

    def _wait(self) -> None:
        timeout: float | None = None
        if self._ready or self._commands:
            timeout = 0
        elif self._timers:
            timeout = max(0.0, self._timers[0][0] - time.monotonic())
        for fd, _ in self._epoll.poll(timeout, 1024):
            source = self._sources.get(fd)
            if source is not None:
                self._ready[fd] = source
            elif fd == self._wake:
                os.eventfd_read(fd)
            elif (command := self._urgent.get(fd)) is not None:
                command()

    def _fire(self) -> None:
        now = time.monotonic()
        while self._timers and (self._timers[0][0] <= now or self._timers[0][2].call is None):
            deadline = heapq.heappop(self._timers)[2]
            if (call := deadline.call) is not None:
                deadline.call = None
                call()
