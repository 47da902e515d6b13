"""The worker's end of its channel: whole frames, from any thread, never half of one.

A SEQPACKET socket takes read(2) and write(2), so that an exec'd worker needs no socket module before
it is Ready. A channel whose host is gone ends the worker: nothing is left to work for.
"""

import posix
from _thread import allocate_lock

from sandbox_worker import protocol
from sandbox_worker.protocol import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Any, Literal

HOST_GONE = 113
MEMFD = protocol.Down.MEMFD

_sequence = allocate_lock()
_socket_object: "_socket.socket | None" = None


def send(header: str, text: bytes = b"") -> None:
    """Sends one message: its line of JSON, and the value text that belongs to it.

    Raises:
        ValueError: the frame is too large.
    """
    frame = f"{header}\n".encode() + text
    if len(frame) > protocol.FRAME_BYTES:
        msg = f"a message of {len(frame)} bytes does not fit a frame of {protocol.FRAME_BYTES}"
        raise ValueError(msg)
    try:
        posix.write(protocol.CHANNEL_FD, frame)
    except (BrokenPipeError, ConnectionResetError):
        posix._exit(HOST_GONE)  # noqa: SLF001


def send_value(header: str, text: bytes) -> None:
    """Sends a message whose text may need several frames: chunks, then the message itself.

    The caller must keep Cancelled away meanwhile (`Context.shielded`): half a text is a broken protocol.
    """
    with _sequence:
        start = 0
        while len(text) - start > protocol.CHUNK_BYTES:
            send('{"t":"chunk"}', text[start : start + protocol.CHUNK_BYTES])
            start += protocol.CHUNK_BYTES
        send(header, text[start:] if start else text)


def receive() -> "tuple[Any, ...]":
    """Waits for the next message of the host."""
    try:
        frame = posix.read(protocol.CHANNEL_FD, protocol.FRAME_BYTES + 1)
    except ConnectionResetError:
        frame = b""
    return _opened(frame)


def poll() -> "tuple[Any, ...] | None":
    """The next message of the host, or None if there is none now."""
    connection = _socket_object or _as_socket()
    try:
        frame = connection.recv(protocol.FRAME_BYTES + 1, _DONTWAIT)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        frame = b""
    return _opened(frame)


_DONTWAIT = 0x40


def _opened(frame: bytes) -> "tuple[Any, ...]":
    if not frame:
        posix._exit(HOST_GONE)  # noqa: SLF001
    message = unpack(frame)
    return unpack(_from_memfd(message[1])) if message[0] == MEMFD else message


def _as_socket() -> "_socket.socket":
    global _socket_object  # noqa: PLW0603 made once: closing it would close the channel
    import _signal
    import _socket

    # Cancelled, raised by SIGURG's handler before the object is kept, would drop it, and with it the channel.
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGURG])
    try:
        _socket_object = _socket.socket(fileno=protocol.CHANNEL_FD)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    return _socket_object


def receive_descriptors() -> list[int]:
    """Waits for the descriptors that the last message announced."""
    connection = _socket_object or _as_socket()
    _, ancillary, _, _ = connection.recvmsg(1, 64)
    data = ancillary[0][2]
    return [int.from_bytes(data[i : i + 4], _byteorder()) for i in range(0, len(data), 4)]


def _from_memfd(size: int) -> bytes:
    (fd,) = receive_descriptors()
    try:
        data = posix.pread(fd, size, 0)
        while len(data) < size:
            data += posix.pread(fd, size - len(data), len(data))
    finally:
        posix.close(fd)
    return data


def _byteorder() -> "Literal['little', 'big']":
    import sys

    return sys.byteorder
