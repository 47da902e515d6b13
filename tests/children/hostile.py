"""A child that plays a script of fuzz/scripts.py on its channel, past everything that the worker offers."""

import os
import select
import signal
import socket
import time
from array import array

from fuzz import scripts
from sandbox_worker import protocol

CHANNEL = protocol.CHANNEL_FD
DEAF_SECONDS = 0.2


class Closed(Exception):
    """The host closed the channel."""


def run(seed, number, state, kind=None):
    """The target of a child in RUNNING or STOPPING."""
    play(scripts.script(seed, number, state, kind))


def boot(seed, number, kind=None):
    """What a hostile worker does in the place of booting."""
    play(scripts.script(seed, number, scripts.BOOTING, kind))


def play(script):
    """Never returns."""
    signal.signal(signal.SIGURG, signal.SIG_IGN)
    if script.ladder:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        for step in script.steps:
            _STEPS[step[0]](*step[1:])
    except (Closed, OSError):
        if script.lingers:
            _linger()
        os._exit(7)
    os._exit(0)


def _send(frame):
    _refusing(lambda: os.write(CHANNEL, frame) if frame else _socket().send(b""))


def _refusing(send):
    try:
        send()
    except OSError as error:
        raise Closed from error


def _many(frames):
    write, own = os.write, _socket()
    for number, frame in enumerate(frames):
        write(CHANNEL, frame)
        if not number % 16:
            _empty(own)


def _empty(own):
    """Throws away what the host said."""
    try:
        while own.recv(protocol.FRAME_BYTES, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return


def _rights(frame, count):
    fds = array("i", [CHANNEL] * count)
    _refusing(lambda: _socket().sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]))


def _strangers(frame):
    pid = os.fork()
    if not pid:
        os.write(CHANNEL, frame)
        os._exit(0)
    os.waitpid(pid, 0)


def _read_until(wanted, count=1):
    while count:
        frame = os.read(CHANNEL, protocol.FRAME_BYTES + 1)
        if not frame:
            raise Closed
        if frame[:1] != b"m":  # the byte that comes with a descriptor
            count -= protocol.unpack(frame)[0] == wanted


def _stop():
    _send(scripts.GO)
    _read_until(protocol.Down.CANCEL)


def _deaf(frames):
    own, until = _socket(), time.monotonic() + DEAF_SECONDS
    while time.monotonic() < until:
        for frame in frames:
            try:
                own.send(frame, socket.MSG_DONTWAIT)
            except BlockingIOError:
                select.select([], [own], [], 0.01)


def _ever(frames):
    while True:
        _many(frames)


def _signal(number):
    os.kill(os.getpid(), number)
    _linger()


def _linger():
    time.sleep(60)


def _socket():
    global _channel
    if _channel is None:
        _channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=CHANNEL)
    return _channel


_channel = None
_STEPS = {
    "many": _many,
    "send": _send,
    "rights": _rights,
    "strangers": _strangers,
    "run": lambda: _read_until(protocol.Down.RUN),
    "steers": lambda count: _read_until(protocol.Down.STEER, count),
    "stop": _stop,
    "deaf": _deaf,
    "ever": _ever,
    "shut": lambda how: _socket().shutdown(how),
    "close": lambda: os.close(CHANNEL),
    "exit": os._exit,
    "signal": _signal,
    "linger": _linger,
}


def payload(named):
    """Sends a text of fuzz/texts.py as a result, in chunks; stamps stdout before its last word."""
    from fuzz import texts

    text = texts.TEXTS[named]()
    try:
        for at in range(0, len(text), protocol.CHUNK_BYTES):
            _send(b'{"t":"chunk"}\n' + text[at : at + protocol.CHUNK_BYTES])
    except Closed:
        _linger()
    os.write(1, b"%d" % time.monotonic_ns())
    _send(b'{"t":"result"}\n')
    os._exit(0)


def ask_and_read_nothing(seconds):
    frame, until = b'{"t":"ask","id":1,"tool":"absent"}\n["d",0]\n', time.monotonic() + seconds
    while time.monotonic() < until:
        os.write(CHANNEL, frame)
