"""The host's end of one child's channel: bounded frames in, an ordered queue out, poisoned once broken.

A descriptor that a child sends is dropped by the kernel: plain recv offers no room for one.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sandbox_worker import protocol

if TYPE_CHECKING:
    from sandbox_exec.engine.broker import Broker

FRAMES_A_TURN: Final = 64
BYTES_A_TURN: Final = 65_536
SECONDS_A_TURN: Final = 0.0005  # some frames are dear to decode
PROBE_AFTER, PROBE_AGAIN = 4, 16  # see `Channel._turn`

_CREDENTIALS: Final = struct.Struct("=iII")  # pid, uid, gid
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 0x1, 0x2
_F_ADD_SEALS, _ALL_SEALS = 1033, 0xF


class Channel:
    """One SEQPACKET socket on the loop.

    Args:
        broker: the loop.
        sock: the host's end, non-blocking.
        on_frame: gets each frame; may close the channel.
        on_closed: the child's end is closed and everything it had sent was delivered.
        on_violation: gets the fault of a frame that breaks the framing itself.
        on_unable: gets what the host lacks to send what was queued.
        attest: have the kernel say which process sent the first frame; it is in `peer` then.
    """

    __slots__ = (
        "_blocked", "_broker", "_closed", "_ended", "_fd", "_on_closed", "_on_frame", "_on_unable",
        "_on_violation",
        "_outgoing", "_receive", "_row", "_sock", "peer",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        sock: socket.socket,
        on_frame: Callable[[bytes], None],
        on_closed: Callable[[], None],
        on_violation: Callable[[str], None],
        on_unable: Callable[[str], None],
        *,
        attest: bool = False,
    ) -> None:
        self._broker, self._sock, self._fd = broker, sock, sock.fileno()
        self._on_frame, self._on_closed = on_frame, on_closed
        self._on_violation, self._on_unable = on_violation, on_unable
        # Frames that the socket had no room for, with the descriptors that go with them.
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] | None = None
        self._blocked = False
        self._closed = self._ended = False
        self._row = 0  # passes in a row with one frame
        self.peer = 0
        self._receive: Callable[[int], bytes] = self._attested if attest else sock.recv
        if attest:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def open(self) -> None:
        """Begins to listen."""
        self._broker.watch(self._fd, self._turn)

    def _turn(self) -> None:
        """Reads a bounded share: one frame, or many of a child that has many.

        Whether it has is asked only after a row of passes in which it had one: the read that fails costs
        as much as one that succeeds.
        """
        if self._outgoing is not None:
            self._flush()
        began = time.monotonic()
        if self._row < PROBE_AFTER:
            self._row += 1
            self._deliver()
            if not self._closed and time.monotonic() > began + SECONDS_A_TURN:
                self._broker.sated(self._fd)
        else:
            self._row = PROBE_AFTER if self._read(began) > 1 else -PROBE_AGAIN

    def _read(self, began: float) -> int:
        """Delivers frames until there are none, or it is the others' turn; returns how many there were."""
        got = 0
        for number in range(FRAMES_A_TURN):
            size = self._deliver()
            got += size
            if not size:
                return number
            if self._closed:
                return number + 1
            if got >= BYTES_A_TURN or time.monotonic() > began + SECONDS_A_TURN:
                break
        self._broker.sated(self._fd)
        return FRAMES_A_TURN

    def _deliver(self) -> int:
        """Delivers one frame; returns its size, 0 if there was none."""
        try:
            frame = self._receive(protocol.FRAME_BYTES + 1)
        except BlockingIOError:
            return 0
        except ConnectionResetError:
            # The child died with a message of ours unread; its own last words come after this.
            return self._deliver()
        if not frame:
            self._nothing_more()
        elif len(frame) > protocol.FRAME_BYTES:
            self._on_violation("a frame above the bound")
        else:
            self._on_frame(frame)
        return len(frame)

    def _attested(self, size: int) -> bytes:
        """The first frame, with the sender's pid in *our* namespace; no room for a descriptor of its."""
        frame, ancillary, _, _ = self._sock.recvmsg(size, socket.CMSG_SPACE(_CREDENTIALS.size))
        self._receive = self._sock.recv
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                self.peer = _CREDENTIALS.unpack(data)[0]
        return frame

    def drain(self) -> bool:
        """Reads on after the child's death; True once its last word was delivered."""
        if self._closed or self._ended:
            return True
        return self._read(time.monotonic()) == 0  # few may be the bound on bytes: only none means the end

    def _nothing_more(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        events = poll.poll(0)
        if events and events[0][1] & select.POLLHUP and not self._more():
            self._ended = True
            self._broker.forget(self._fd)
            self._on_closed()
        else:
            self._on_violation("an empty frame")

    def _more(self) -> bool:
        """Whether something follows: then what looked like the end was an empty frame."""
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def send(self, frame: bytes) -> None:
        """Sends, or queues, one message; a large one goes in a sealed memfd.

        Raises:
            OSError: no memory or descriptors for the memfd.
        """
        if len(frame) <= protocol.INLINE_BYTES:
            if self._outgoing is None:
                try:
                    self._sock.send(frame)
                except OSError:
                    pass  # queued, and tried again where each failure is told apart
                else:
                    return
            self._put(frame)
            return
        fd = sealed(frame)
        self._put(protocol.pack(protocol.Down.MEMFD, len(frame)))
        self._put(b"m", fd)

    def send_data(self, data: bytes) -> None:
        """Sends a sealed memfd with `data` as a descriptor of its own.

        Raises:
            OSError: no memory or descriptors for it.
        """
        self._put(b"m", sealed(data))

    def send_descriptors(self, fds: Sequence[int]) -> None:
        """Sends these descriptors, together, and closes them here."""
        self._put(b"d", *fds)

    @property
    def waiting(self) -> int:
        """How many frames are queued because the child does not read."""
        return len(self._outgoing) if self._outgoing is not None else 0

    def _put(self, frame: bytes, *fds: int) -> None:
        if self._closed:
            _close(fds)
            return
        if self._outgoing is None:
            self._outgoing = deque()
        self._outgoing.append((frame, fds))
        if not self._blocked:
            self._flush()

    def _flush(self) -> None:
        waiting = self._outgoing
        while waiting:
            frame, fds = waiting[0]
            try:
                if not fds:
                    self._sock.send(frame)
                else:
                    self._sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))])
            except BlockingIOError:
                self._want_writable(wanted=True)
                return
            except (BrokenPipeError, ConnectionResetError):  # the child is gone: its end is told elsewhere
                self._drop_outgoing()
                break
            except OSError as error:  # too many descriptors on their way (ETOOMANYREFS), no memory
                self._on_unable(f"a message could not be sent: {error}")
                return
            waiting.popleft()
            _close(fds)
        self._outgoing = None
        self._want_writable(wanted=False)

    def _want_writable(self, *, wanted: bool) -> None:
        if wanted is not self._blocked:
            self._blocked = wanted
            self._broker.watch_writable(self._fd, on=wanted)

    def _drop_outgoing(self) -> None:
        for _, fds in self._outgoing or ():
            _close(fds)
        self._outgoing = None

    def close(self) -> None:
        """Closes the host's end; idempotent. Nothing is delivered any more."""
        if not self._closed:
            self._closed = True
            self._broker.forget(self._fd)
            self._drop_outgoing()
            self._sock.close()

    def abandon(self) -> None:
        """Closes the descriptor in a forked copy of the host, without touching the loop."""
        self._closed = True
        self._sock.close()


def sealed(data: bytes) -> int:
    """A sealed memfd with `data`: the receiver can rely on it not to change.

    Raises:
        OSError: no memory for it.
    """
    import fcntl

    fd = os.memfd_create("sandbox-exec", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
