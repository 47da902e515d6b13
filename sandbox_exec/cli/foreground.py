"""A command in the foreground: it hears our signals, and ends with whoever started us."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from sandbox_exec import Child, Outcome
    from sandbox_exec.cli.terminal import Bridge

FORWARDED: Final = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
INSISTING: Final = frozenset({signal.SIGINT, signal.SIGTERM})
INSISTED: Final = 3  # so many of these within so many seconds: somebody means it
INSISTING_SECONDS: Final = 5.0


class Caller:
    """The process that started us.

    Watched by a pidfd: PDEATHSIG would speak of the thread of it that did.

    Attributes:
        fd: readable once it has ended; None where it cannot be seen, in a pid namespace above ours.
    """

    def __init__(self) -> None:
        self._pid = os.getppid()
        self.fd: int | None = None
        if self._pid:
            try:
                self.fd = os.pidfd_open(self._pid)
            except ProcessLookupError:  # told by `ended`
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.fd is not None:
            os.close(self.fd)

    def ended(self) -> bool:
        """Whether it ended before it could be watched: then we have another parent by now."""
        return os.getppid() != self._pid


def run(start: Callable[[], Child], caller: Caller, bridge: Bridge | None) -> tuple[Outcome, frozenset[int]]:
    """Starts the child and waits for its end.

    Args:
        start: launches it.
        caller: the tree is ended with it.
        bridge: between it and the terminal; its window size and its foreground follow ours.

    Returns:
        The outcome, and the signals that were passed to it.
    """
    passed: set[int] = set()
    insisted: list[float] = []
    with _heard() as signals, bridge or nullcontext():
        child = start()
        end = os.eventfd(0, os.EFD_CLOEXEC)
        child._call_at_end(partial(os.eventfd_write, end, 1))  # noqa: SLF001 one product
        poll = select.poll()
        for fd in (end, signals, caller.fd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        if caller.ended():
            child.kill()
        while end not in (ready := [fd for fd, _ in poll.poll()]):
            if caller.fd is not None and caller.fd in ready:
                poll.unregister(caller.fd)
                child.kill()
            for number in os.read(signals, 4096) if signals in ready else b"":
                if number in FORWARDED:
                    child._pass(number)  # noqa: SLF001 "
                    passed.add(number)
                elif bridge is not None:
                    (bridge.resize if number == signal.SIGWINCH else bridge.resume)()
                if number in INSISTING:
                    insisted = [*insisted[1 - INSISTED :], time.monotonic()]
                    if len(insisted) == INSISTED and insisted[-1] - insisted[0] < INSISTING_SECONDS:
                        child.kill()
        os.close(end)
        return child.outcome(), frozenset(passed)


@contextmanager
def _heard() -> Iterator[int]:
    """Our signals as bytes on a descriptor: none is lost, whatever we are at. What is ignored stays so."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {}
    for number in (*FORWARDED, signal.SIGWINCH, signal.SIGCONT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, _nothing_more)
    # To give the terminal back may happen in the background, and must not stop us there.
    before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reading)
        os.close(writing)


def _nothing_more(_number: int, _frame: FrameType | None) -> None:
    """The byte is written by then."""
