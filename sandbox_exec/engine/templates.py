"""Launchers from the executor's side: start, requests, loss, replacement.

A launcher's death leaves running children alone. Requests that it had not answered are made again, with
fresh descriptors, to its replacement; the old ones are closed, so that a clone that nobody heard of
reads EOF and ends.
"""

from __future__ import annotations

import os
import socket
from array import array
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from sandbox_exec.engine import reaper
from sandbox_exec.engine.spawner import LauncherProcess, Spawner
from sandbox_exec.errors import LaunchError
from sandbox_worker import protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox_exec.engine.broker import Broker

IN_FLIGHT: Final = 32  # requests on the control socket: their descriptors count against RLIMIT_NOFILE
ATTEMPTS: Final = 2
STARTS: Final = 3  # launchers in a row that die before they are ready

DIRECT, INIT = "direct", "init"


class Order(Protocol):
    """One process to be made."""

    def prepare(self) -> tuple[str, list[tuple[int, int, int]], list[int]]:
        """Shape, rlimits, and the child's descriptors (channel, stdout, stderr, init's status pipe).

        Called again for every attempt. The launcher's side closes the descriptors.

        Raises:
            OSError: none are left.
        """

    def spawned(self, pid: int, pidfd: int, *, contained: bool) -> None:
        """It exists."""

    def failed(self, why: str) -> None:
        """It does not."""


class Launchers:
    """The launcher of one executor, on the loop."""

    def __init__(self, broker: Broker, spawner: Spawner, known: Callable[[], set[int]]) -> None:
        self._broker, self._spawner, self._known = broker, spawner, known
        self._queue: deque[tuple[Order, int]] = deque()  # with the attempts already made
        self._sent: dict[int, tuple[Order, int]] = {}
        self._serial = 0
        self._failures = 0
        self._starting = False
        self._closed = False
        self._launcher: LauncherProcess | None = None
        self._ready = False
        self.namespaces = 0
        self.missing = ""

    def request(self, order: Order) -> None:
        """Has a process made; starts a launcher if there is none."""
        self._queue.append((order, 0))
        self._pump()

    def _pump(self) -> None:
        if self._launcher is None and not self._starting and not self._closed and self._queue:
            self._starting = True
            self._spawner.start(lambda started: self._broker.post(lambda: self._started(started)))
        while self._ready and self._queue and len(self._sent) < IN_FLIGHT:
            self._send(*self._queue.popleft())

    def _send(self, order: Order, attempts: int) -> None:
        assert self._launcher is not None
        try:
            shape, rlimits, fds = order.prepare()
        except OSError as error:
            order.failed(f"cannot make the child's descriptors: {error}")
            return
        self._serial += 1
        frame = protocol.pack(self._serial, shape, rlimits)
        try:
            self._launcher.control.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))])
        except OSError:  # it is dying, or its socket is full: its end, or its answers, bring us back here
            self._queue.appendleft((order, attempts))
            self._ready = False
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._sent[self._serial] = (order, attempts + 1)

    def _started(self, started: LauncherProcess | LaunchError) -> None:
        self._starting = False
        if isinstance(started, LaunchError):
            self._give_up(str(started))
            return
        if self._closed:
            _end(started)
            return
        self._launcher = started
        self._broker.watch(started.control.fileno(), self._turn)
        self._broker.watch_end(started.process.pidfd, self._lost)

    def _turn(self) -> None:
        self._read()

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
        if not self._ready and not self._sent:
            self._hello(frame)
        else:
            self._answer(frame, ancillary)
        self._pump()
        return True

    def _hello(self, frame: bytes) -> None:
        version, self.namespaces = (int.from_bytes(frame[i : i + 8], "little") for i in (0, 8))
        self.missing = frame[16:].decode("utf-8", "replace")
        if version != protocol.VERSION:
            self._give_up(
                f"the launcher speaks version {version}, this host {protocol.VERSION}: install them together"
            )
            return
        self._ready, self._failures = True, 0

    def _answer(self, frame: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        self._ready = True
        order, _ = self._sent.pop(int.from_bytes(frame[:8], "little"))
        pid = int.from_bytes(frame[8:16], "little", signed=True)
        if pid < 0:
            hint = "a limit on processes, memory or namespaces: see ulimit -u and /proc/sys/user/"
            order.failed(f"cannot clone: {os.strerror(-pid)} ({hint})")
            return
        pidfd = array("i", ancillary[0][2])[0]
        order.spawned(pid, pidfd, contained=bool(self.namespaces))

    def _lost(self) -> None:
        """The launcher died; what it did is known, what it left undone is made again."""
        launcher = self._launcher
        assert launcher is not None
        while self._read():
            pass
        self._launcher, self._ready = None, False
        launcher.process.collect()
        words = launcher.last_words()
        self._close(launcher)
        self._failures += 1
        unanswered, self._sent = list(self._sent.values()), {}
        for order, attempts in reversed(unanswered):
            if attempts >= ATTEMPTS:
                order.failed(f"the launcher died twice over it. {words}")
            else:
                self._queue.appendleft((order, attempts))
        if unanswered:
            reaper.end_strays(self._spawner.thread_id, self._known())
        if self._failures >= STARTS:
            self._give_up(
                f"{STARTS} launchers in a row died at once. The last one said: {words or 'nothing'}"
            )
        self._pump()

    def _give_up(self, why: str) -> None:
        self._failures = 0
        while self._queue:
            self._queue.popleft()[0].failed(why)

    def _close(self, launcher: LauncherProcess) -> None:
        self._broker.forget(launcher.control.fileno())
        self._broker.forget(launcher.process.pidfd)
        launcher.control.close()
        launcher.process.close()
        os.close(launcher.log)

    def close(self) -> None:
        """Ends the launcher. Nothing is made after this."""
        self._closed = True
        self._give_up("the executor was shut down")
        if self._launcher is not None:
            launcher, self._launcher, self._ready = self._launcher, None, False
            self._broker.forget(launcher.control.fileno())
            self._broker.forget(launcher.process.pidfd)
            _end(launcher)

    def abandon(self) -> None:
        """Closes the descriptors in a forked copy of the host."""
        if self._launcher is not None:
            self._launcher.control.close()
            self._launcher.process.close()
            os.close(self._launcher.log)
            self._launcher = None


def _end(launcher: LauncherProcess) -> None:
    launcher.process.kill()
    launcher.process.wait()
    launcher.control.close()
    launcher.process.close()
    os.close(launcher.log)
