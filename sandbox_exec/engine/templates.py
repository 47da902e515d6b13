"""Launchers and the clones that they make ahead: start, supply, loss, replacement.

A clone is made before it is asked for, because forking even a small interpreter takes a millisecond.
It belongs to one shape, holds nothing of anybody's, and waits on a socket of its own for its one order:
the host hands descriptors and rlimits straight to it. A launcher that dies takes nothing along: waiting
clones, running children and orders stay, and its replacement goes on supplying.
"""

from __future__ import annotations

import os
import socket
import time
from array import array
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from sandbox_exec.engine import reaper
from sandbox_exec.engine.reaper import Process
from sandbox_exec.errors import LaunchError
from sandbox_worker import protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox_exec.engine.broker import Broker
    from sandbox_exec.engine.spawner import LauncherProcess, Spawner

AHEAD: Final = 2  # clones that wait while nobody asks
REFILL_SECONDS: Final = 0.015
IN_FLIGHT: Final = 8  # clones asked for at once
STARTS: Final = 3  # launchers in a row that die before they are ready

DIRECT, INIT = "direct", "init"


class Order(Protocol):
    """One process to be made."""

    @property
    def shape(self) -> str:
        """DIRECT or INIT."""

    def prepare(self) -> tuple[list[tuple[int, int, int]], list[int]]:
        """Rlimits, and the child's descriptors (channel, stdout, stderr, init's status pipe): ours to close.

        Raises:
            OSError: none are left.
        """

    def spawned(self, pid: int, pidfd: int, *, contained: bool) -> None:
        """It exists."""

    def failed(self, why: str) -> None:
        """It does not."""


@dataclass(slots=True)
class _Clone:
    """A process that waits for its order."""

    pid: int
    pidfd: int
    sock: socket.socket

    def take(self, order: Order) -> str | None:
        """Hands over an order; None if this clone is dead, else what is wrong with the order, or nothing."""
        try:
            rlimits, fds = order.prepare()
        except OSError as error:
            return f"cannot make the child's descriptors: {error}"
        try:
            frame = protocol.pack(rlimits)
            self.sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))])
        except OSError:
            return None
        finally:
            for fd in fds:
                os.close(fd)
        return ""

    def end(self) -> None:
        """Kills and reaps it."""
        process = Process(self.pid, self.pidfd, None, contained=False)
        process.kill()
        process.wait()
        process.close()
        self.sock.close()


class Launchers:
    """The launcher of one executor, and its clones. On the loop."""

    def __init__(self, broker: Broker, spawner: Spawner, known: Callable[[], set[int]]) -> None:
        self._broker, self._spawner, self._known = broker, spawner, known
        self._orders: deque[Order] = deque()
        self._waiting: dict[str, deque[_Clone]] = {DIRECT: deque(), INIT: deque()}
        self._making: deque[str] = deque()  # shapes asked of the launcher, in order
        self._failures = 0
        self._refill_at = 0.0
        self._progress = 0.0  # when a clone was made last, or the first of these orders came
        self._starting = self._ready = self._closed = False
        self._scarce = False  # the last clone failed: none is made ahead until somebody asks again
        self._launcher: LauncherProcess | None = None
        self._namespaces = 0

    def request(self, order: Order) -> None:
        """Has a process made; starts a launcher if there is none."""
        if not self._orders:
            self._progress = time.monotonic()
        self._orders.append(order)
        self._scarce = False
        self._supply()

    def withdraw(self, order: Order, why: str) -> None:
        """Fails an order that has not been served."""
        if order in self._orders:
            self._orders.remove(order)
            order.failed(why)

    def overdue(self, order: Order, seconds: float) -> None:
        """Fails an order if no clone was made for so long, and replaces the launcher."""
        if time.monotonic() - self._progress < seconds:
            return
        self.withdraw(order, f"no process could be made in {seconds:g} s: the launcher does not answer")
        if self._launcher is not None:
            self._launcher.process.kill_tree()  # a stopped one, too: its replacement serves the others

    def _supply(self) -> None:
        """Serves the orders with what waits, and has made what is missing."""
        while self._orders and self._waiting[self._orders[0].shape]:
            self._serve(self._orders.popleft())
        if self._closed:
            return
        if self._launcher is None and not self._starting and self._orders:
            self._starting = True
            self._spawner.start(lambda started: self._broker.post(lambda: self._started(started)))
        if self._ready:
            for shape in (INIT, DIRECT):
                self._have_made(shape)

    def _have_made(self, shape: str) -> None:
        wanted = sum(order.shape == shape for order in self._orders)
        if (shape == INIT or wanted) and not self._scarce and time.monotonic() >= self._refill_at:
            wanted += AHEAD
        missing = wanted - len(self._waiting[shape]) - self._making.count(shape)
        assert self._launcher is not None
        while missing > 0 and len(self._making) < IN_FLIGHT:
            try:
                self._launcher.control.send(shape.encode())
            except OSError:  # it is dying: its end brings us back here
                return
            self._making.append(shape)
            missing -= 1

    def _serve(self, order: Order) -> None:
        clone = self._waiting[order.shape].popleft()
        wrong = clone.take(order)
        if wrong is None:  # the clone was killed while it waited: the next one takes the order
            clone.end()
            self._orders.appendleft(order)
        elif wrong:
            self._waiting[order.shape].appendleft(clone)
            order.failed(wrong)
        else:
            clone.sock.close()
            # The next clone is made once this child has booted: a fork beside it would cost it 1 ms.
            self._refill_at = time.monotonic() + REFILL_SECONDS
            self._broker.call_at(self._refill_at, self._supply)
            contained = order.shape == INIT and bool(self._namespaces)
            order.spawned(clone.pid, clone.pidfd, contained=contained)

    def _started(self, started: LauncherProcess | LaunchError) -> None:
        self._starting = False
        if isinstance(started, LaunchError):
            self._give_up(str(started))
        elif self._closed:
            _end(started)
        else:
            self._launcher = started
            self._broker.watch(started.control.fileno(), self._turn)
            self._broker.watch_end(started.process.pidfd, self._lost)

    def _turn(self) -> None:
        self._read()
        self._supply()

    def _read(self) -> bool:
        """Handles one of the launcher's answers; False if there was none."""
        launcher = self._launcher
        if launcher is None:
            return False
        try:
            frame, ancillary, _, _ = launcher.control.recvmsg(
                protocol.FRAME_BYTES, 64, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except ConnectionResetError:  # it died with a request unread: its last answers come after this
            return True
        if not frame:
            self._broker.forget(launcher.control.fileno())  # its pidfd says the rest
            return False
        if self._ready:
            self._made(int.from_bytes(frame, "little", signed=True), ancillary)
        else:
            self._hello(*(int.from_bytes(frame[i : i + 8], "little") for i in (0, 8)))
        return True

    def _hello(self, version: int, namespaces: int) -> None:
        if version != protocol.VERSION:
            why = (
                f"the launcher speaks version {version}, this host {protocol.VERSION}: install them together"
            )
            self._give_up(why)
            return
        self._ready, self._failures, self._namespaces = True, 0, namespaces

    def _made(self, pid: int, ancillary: list[tuple[int, int, bytes]]) -> None:
        shape = self._making.popleft()
        self._progress = time.monotonic()
        fds = array("i", ancillary[0][2]) if ancillary else array("i")
        if pid > 0 and len(fds) == 2:
            self._waiting[shape].append(_Clone(pid, fds[0], socket.socket(fileno=fds[1])))
            return
        if pid > 0:  # the kernel had no room for its descriptors here
            for fd in fds:
                os.close(fd)
            reaper.end_unheld(pid)
            why = "cannot hold a clone: no descriptors are left (see ulimit -n)"
        else:
            hint = "a limit on processes, memory or namespaces: see ulimit -u and /proc/sys/user"
            why = f"cannot clone: {os.strerror(-pid)} ({hint})"
        self._scarce = True
        if self._orders:
            self._orders.popleft().failed(why)

    def _lost(self) -> None:
        """The launcher died. What it was asked for is asked of the next."""
        launcher = self._launcher
        assert launcher is not None
        while self._read():
            pass
        self._launcher, self._ready = None, False
        self._making.clear()
        launcher.process.collect()
        words = launcher.last_words()
        self._broker.forget(launcher.control.fileno())
        self._broker.forget(launcher.process.pidfd)
        _close(launcher)
        waiting = {clone.pid for clones in self._waiting.values() for clone in clones}
        reaper.end_strays(self._spawner.thread_id, self._known() | waiting)
        self._failures += 1
        if self._failures >= STARTS:
            self._give_up(
                f"{STARTS} launchers in a row died at once. The last one said: {words or 'nothing'}"
            )
        self._supply()

    def _give_up(self, why: str) -> None:
        self._failures = 0
        while self._orders:
            self._orders.popleft().failed(why)

    def close(self) -> None:
        """Ends the launcher and what waits. Nothing is made after this."""
        self._closed = True
        self._give_up("the executor was shut down")
        launcher, self._launcher, self._ready = self._launcher, None, False
        if launcher is not None:
            self._broker.forget(launcher.control.fileno())
            self._broker.forget(launcher.process.pidfd)
            _end(launcher)
        for clones in self._waiting.values():
            while clones:
                clones.popleft().end()
        reaper.end_strays(self._spawner.thread_id, self._known())

    def abandon(self) -> None:
        """Closes the descriptors in a forked copy of the host."""
        if self._launcher is not None:
            _close(self._launcher)
            self._launcher = None
        for clones in self._waiting.values():
            for clone in clones:
                clone.sock.close()
                os.close(clone.pidfd)
            clones.clear()


def _end(launcher: LauncherProcess) -> None:
    launcher.process.kill()
    launcher.process.wait()
    _close(launcher)


def _close(launcher: LauncherProcess) -> None:
    launcher.control.close()
    launcher.process.close()
    os.close(launcher.log)
