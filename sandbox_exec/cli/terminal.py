"""A pty of ours between a command and the terminal that `sandboxed` runs in.

The command's session has our pty as its controlling terminal, so that job control, window sizes, /dev/tty
and the keys that send signals work in it; the real terminal, through which one could type into the shell
or reach its other programs, stays ours.

Two threads copy. The keyboard is taken, and the real terminal is in raw mode, while standard input is a
terminal and we are in its foreground; else its keys are somebody else's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import termios
import threading
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from sandbox_exec.errors import ConfigError

_SIZE_BYTES: Final = 8  # struct winsize
_TICK_SECONDS: Final = 0.1
# How many ticks without progress end the wait for the rest of the output: a terminal may be slow, but what
# left its tree (there is no pid namespace everywhere) may hold our pty for ever.
_PATIENCE: Final = {True: 100, False: 5}


class Bridge:
    """The pty, from before the launch until after the end.

    Args:
        terminals: which of descriptors 0 to 2 are terminals, at least one.

    Attributes:
        slave: the command's end.

    Raises:
        ConfigError: there is no pty to be had, or the terminal is gone.
    """

    def __init__(self, terminals: Sequence[int]) -> None:
        self._real = terminals[0]
        self._keyboard = self._real == 0
        self._screen = next((fd for fd in (1, 2, 0) if fd in terminals and _writable(fd)), None)
        # What else writes to this terminal, as the end of a pipeline does, still wants its lines ended.
        self._raw_output = 1 in terminals
        try:
            self._before = termios.tcgetattr(self._real)
            self._master, self.slave = os.openpty()
            termios.tcsetattr(self.slave, termios.TCSANOW, self._before)
        except (OSError, termios.error) as error:
            raise ConfigError(f"cannot bridge the terminal: {error}. Try --tty=direct.") from error
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._shows = threading.Thread(target=self._show, name="terminal output", daemon=True)
        self._reads: threading.Thread | None = None
        self._painting, self._shown = False, 0
        self._is_raw = False
        self._lock = -1

    def __enter__(self) -> Self:
        self._shows.start()
        self.resume()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            os.eventfd_write(self._stop, 1)
            os.close(self.slave)
            self._await_the_rest()
        finally:
            self._restore()

    def resize(self) -> None:
        """Gives the command the size of the window."""
        with contextlib.suppress(OSError):  # the terminal is gone
            size = fcntl.ioctl(self._real, termios.TIOCGWINSZ, bytes(_SIZE_BYTES))
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def resume(self) -> None:
        """Takes the keyboard, if it is ours to take: at first, and whenever our job may be in front again."""
        self.resize()
        if not self._keyboard or not self._in_front() or not self._alone():
            return
        with contextlib.suppress(termios.error):
            tty.setraw(self._real, termios.TCSANOW)
            self._is_raw = True
            if not self._raw_output:
                attributes = termios.tcgetattr(self._real)
                attributes[tty.OFLAG] |= termios.OPOST
                termios.tcsetattr(self._real, termios.TCSANOW, attributes)
        if self._reads is None:
            self._reads = threading.Thread(target=self._read, name="terminal input", daemon=True)
            self._reads.start()

    def _in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self._real) == os.getpgrp()
        except OSError:  # not the terminal of our session: there are no jobs
            return True

    def _alone(self) -> bool:
        """Whether no other bridge has the keyboard: the second would give the terminal back raw."""
        if self._lock < 0:
            try:  # of our own: a lock belongs to all that share what they inherited
                self._lock = os.open(f"/proc/self/fd/{self._real}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                self._lock = -1
                return False
            except OSError:  # another user's terminal: nobody else's bridge is likely on it
                return True
        return True

    def _restore(self) -> None:
        if self._is_raw and self._in_front():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._real, termios.TCSANOW, self._before)
        if self._lock >= 0:
            os.close(self._lock)

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._real, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while all(fd != self._stop for fd, _ in poll.poll()):
            try:
                data = os.read(self._real, 4096)
            except BlockingIOError:  # whoever shares the terminal has made it so, and was faster
                continue
            except OSError:  # hung up
                return
            if not data or not _write(self._master, data):
                return

    def _show(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # EIO: the last holder of the other end has closed it
                return
            self._painting = True
            if self._screen is not None and not _write(self._screen, data):
                self._screen = None  # hung up; the command is not held up by it
            self._painting = False
            self._shown += 1

    def _await_the_rest(self) -> None:
        waited, shown = 0, self._shown
        while self._shows.is_alive() and waited < _PATIENCE[self._painting]:
            self._shows.join(_TICK_SECONDS)
            waited = waited + 1 if self._shown == shown else 0
            shown = self._shown
        if not self._shows.is_alive():
            os.close(self._master)


def _writable(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def _write(fd: int, data: bytes) -> bool:
    """Writes all of it; False if nobody takes it any more."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError:
            return False
    return True
