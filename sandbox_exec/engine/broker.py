"""The loop: one thread that waits for every child at once. It never runs user code.

A pass: wait for descriptors · the urgent (deaths) · one turn for every source that has something, bounded
in frames and bytes, with commands looked at in between · timers. What a turn leaves unread stays in the
kernel, makes the descriptor ready again in the next pass, and is the child's back-pressure: draining a
flooding child until EAGAIN delayed another's event by 125 ms in the median.

Level-triggered: the usual trap, a dead child's hung-up socket that spins the loop, cannot be met, for a
source that reads end of file is forgotten at once. Edge-triggered costs a read that fails for each that
succeeds, a fifth of a round trip.
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
from typing import Final

Command = Callable[[], None]
BATCH: Final = 256
LONGEST_WAIT: Final = 3_600.0  # seconds; epoll takes at most 24 days
REST_SECONDS: Final = 0.001  # epoll's resolution


class Deadline:
    """A pending call at a monotonic time."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Command) -> None:
        self.at = at
        self.call: Command | None = call

    def cancel(self) -> None:
        """The call will not happen. The heap drops the husk when its time comes."""
        self.call = None


class Broker:
    """The loop thread. All its methods but `post` and `close` belong to that thread.

    Args:
        on_error: gets an exception that should never happen; the loop goes on with what is left.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._turns: dict[int, Command] = {self._wake: self._woken}
        self._urgent: dict[int, Command] = {}
        self._commands: deque[Command] = deque()
        self._timers: list[tuple[float, int, Deadline]] = []
        self._order = itertools.count()
        self._sated: dict[int, None] = {}  # a queue
        self._writers: set[int] = set()
        self._flooded = self._resting = False
        self._owed = 0.0  # seconds of rest
        self._stopping = False
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name="sandbox-exec broker", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the loop, where nothing may wait for the loop."""
        return threading.current_thread() is self._thread

    # From any thread.

    def post(self, command: Command) -> None:
        """Runs `command` on the loop soon."""
        self.lay(command)
        self.wake()

    def lay(self, command: Command) -> None:
        """Has the loop run `command` when it wakes, and does not wake it."""
        self._commands.append(command)

    def wake(self) -> None:
        """Has the loop make a pass."""
        with contextlib.suppress(OSError, ValueError):  # closed: nobody is left to run it
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Ends the thread; idempotent. Not from the loop."""

        def stop() -> None:
            self._stopping = True

        if self._thread.is_alive():
            self.post(stop)
            self._thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Closes the descriptors without a word to the thread: after a fork there is none."""
        if self._wake >= 0:
            self._epoll.close()
            os.close(self._wake)
            self._wake = -1

    # On the loop.

    def watch(self, fd: int, turn: Command) -> None:
        """Calls `turn` in every pass in which `fd` is readable or hung up."""
        self._turns[fd] = turn
        self._epoll.register(fd, select.EPOLLIN)

    def watch_writable(self, fd: int, *, on: bool) -> None:
        """Adds or drops interest in `fd` being writable."""
        (self._writers.add if on else self._writers.discard)(fd)
        self._listen(fd)

    def watch_end(self, fd: int, command: Command) -> None:
        """Runs `command` first in the pass in which `fd` (a pidfd) becomes readable; once."""
        self._urgent[fd] = command
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def forget(self, fd: int) -> None:
        """No more turns for `fd`; to be called before it is closed."""
        self._sated.pop(fd, None)
        self._writers.discard(fd)
        if self._turns.pop(fd, None) is not None or self._urgent.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def sated(self, fd: int) -> None:
        """Says of `fd`, in its turn, that it had its fill: it queues for the next."""
        if fd not in self._turns:
            return
        self._sated[fd] = None
        self._flooded = True
        self._listen(fd)

    def _listen(self, fd: int) -> None:
        """Asks for what `fd` is waited for now; a hang-up is reported in any case."""
        reads = 0 if fd in self._sated else select.EPOLLIN
        self._epoll.modify(fd, reads | (select.EPOLLOUT if fd in self._writers else 0))

    def _serve(self, took: float) -> None:
        """Lets one of those that had their fill have a turn, and after a while of this, for as long, none.

        A loop that never waits hardly lets go of the GIL, and eight children that fill their sockets
        together keep the processors busy for 12 ms: a caller learned of an end 15 ms late.
        """
        if self._flooded:
            self._flooded, self._owed = False, self._owed + took
        if self._owed >= REST_SECONDS:
            self._resting = True
            self.call_at(time.monotonic() + self._owed, self._rested)
            self._owed = 0.0
        else:
            fd = next(iter(self._sated))
            del self._sated[fd]
            self._listen(fd)

    def _rested(self) -> None:
        self._resting = False

    def call_at(self, at: float, call: Command) -> Deadline:
        """Runs `call` at this time of `time.monotonic`."""
        deadline = Deadline(at, call)
        heapq.heappush(self._timers, (at, next(self._order), deadline))
        if len(self._timers) > 64 + 4 * len(self._turns):  # mostly husks
            self._timers = [timer for timer in self._timers if timer[2].call is not None]
            heapq.heapify(self._timers)
        return deadline

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._pass()
            except Exception as error:  # noqa: BLE001 a bug of ours must not leave every child without a keeper
                self._on_error(error)

    def _pass(self) -> None:
        timeout: float | None = None
        if self._commands or (self._sated and not self._resting):
            timeout = 0
        elif self._has_timer():
            timeout = min(LONGEST_WAIT, max(0.0, self._timers[0][0] - time.monotonic()))
        events = self._epoll.poll(timeout, BATCH)
        woke = time.monotonic()
        urgent, turns, commands = self._urgent, self._turns, self._commands
        if commands:  # before deaths: a kill is posted before its signal is sent, and must be known first
            self._obey()
        for fd, _ in events:
            if fd in urgent:
                urgent[fd]()
        for fd, _ in events:
            if commands:
                self._obey()
            if (turn := turns.get(fd)) is not None:
                turn()
        self._obey()
        if self._timers:
            self._fire()
        if self._sated and not self._resting:
            self._serve(time.monotonic() - woke)

    def _has_timer(self) -> bool:
        """Whether there is a timer at all; husks are dropped, so that none wakes the loop."""
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return bool(self._timers)

    def _obey(self) -> None:
        """Runs the commands that are there; one that posts itself again waits for the next time."""
        for _ in range(len(self._commands)):
            self._commands.popleft()()

    def _woken(self) -> None:
        os.eventfd_read(self._wake)

    def _fire(self) -> None:
        now = time.monotonic()
        while self._timers and (self._timers[0][0] <= now or self._timers[0][2].call is None):
            deadline = heapq.heappop(self._timers)[2]
            if (call := deadline.call) is not None:
                deadline.call = None
                call()
