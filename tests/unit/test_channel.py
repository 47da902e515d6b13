"""The host's end of a channel: whole frames in order, poison for the rest, and nothing lost at a death."""

import contextlib
import fcntl
import os
import queue
import socket
import threading
from array import array
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_exec.engine.broker import Broker
from sandbox_exec.engine.channel import FRAMES_A_TURN, Channel
from sandbox_worker import protocol

MOST = protocol.FRAME_BYTES
SECONDS = 10.0


class Host:
    """A broker and channels on it; what is heard lands in one queue as (channel, kind, thing)."""

    def __init__(self):
        self.heard, self.errors, self._channels = queue.Queue(), [], []
        self.broker = Broker(self.errors.append)

    def pair(self, *, attest=False, opened=True):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        number = len(self._channels)

        def violated(why):
            self._channels[number].close()
            self.heard.put((number, "violation", why))

        channel = Channel(
            self.broker,
            ours,
            lambda frame: self.heard.put((number, "frame", frame)),
            lambda: self.heard.put((number, "closed", None)),
            violated,
            lambda why: self.heard.put((number, "unable", why)),
            attest=attest,
        )
        self._channels.append(channel)
        if opened:
            self.do(channel.open)
        return channel, theirs

    def do(self, call):
        """Runs a call on the loop and returns what it returned."""
        done, box = threading.Event(), []

        def run():
            try:
                box.append((call(), None))
            except Exception as error:
                box.append((None, error))
            done.set()

        self.broker.post(run)
        assert done.wait(SECONDS)
        if box[0][1] is not None:
            raise box[0][1]
        return box[0][0]

    def next(self):
        return self.heard.get(timeout=SECONDS)[1:]

    def close(self):
        for channel in self._channels:
            self.do(channel.close)
        self.broker.close()
        assert not self.errors


@contextlib.contextmanager
def hosting():
    host = Host()
    try:
        yield host
    finally:
        host.close()


@pytest.fixture
def host():
    with hosting() as made:
        yield made


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@given(st.lists(st.integers(1, MOST) | st.integers(1, 300), max_size=30), st.booleans())
@settings(max_examples=50)
def test_frames_arrive_whole_and_in_order(sizes, attest):
    with hosting() as host:
        _, theirs = host.pair(attest=attest)
        frames = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
        with theirs:
            for frame in frames:
                theirs.send(frame)
        assert [host.next() for _ in frames] == [("frame", frame) for frame in frames]
        assert host.next() == ("closed", None)


@given(st.lists(st.sampled_from([1, 50, MOST, MOST + 1, MOST + 5_000, 200_000]), max_size=20))
@settings(max_examples=50)
def test_nothing_counts_behind_a_frame_above_the_bound(sizes):
    with hosting() as host:
        _, theirs = host.pair()
        with theirs, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for size in sizes:
                theirs.send(b"x" * size)
        for size in sizes:
            if size > MOST:
                assert host.next() == ("violation", "a frame above the bound")
                break
            assert host.next() == ("frame", b"x" * size)
        else:
            assert host.next() == ("closed", None)
        assert host.heard.empty()


@pytest.mark.parametrize("shut", [False, True])
def test_an_empty_frame_is_no_end(host, shut):
    _, theirs = host.pair()
    with theirs:
        theirs.send(b"before")
        if shut:
            theirs.shutdown(socket.SHUT_WR)
        else:
            theirs.send(b"")
        assert [host.next(), host.next()] == [("frame", b"before"), ("violation", "an empty frame")]


def test_an_end_that_is_shut_both_ways_is_closed(host):
    _, theirs = host.pair()
    with theirs:
        theirs.send(b"before")
        theirs.shutdown(socket.SHUT_RDWR)
        assert [host.next(), host.next()] == [("frame", b"before"), ("closed", None)]


@pytest.mark.parametrize("attest", [False, True])
@pytest.mark.parametrize("count", [1, 60, 253])
def test_descriptors_that_a_child_sends_are_dropped(host, attest, count):
    _, theirs = host.pair(attest=attest)
    before = descriptors()
    with theirs, open(os.devnull, "rb") as file:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file.fileno()] * count))]
        for _ in range(3):
            theirs.sendmsg([b"look"], rights)
        assert [host.next() for _ in range(3)] == [("frame", b"look")] * 3
        assert descriptors() == before + 1  # the file


def test_the_kernel_says_who_spoke_first(host):
    channel, theirs = host.pair(attest=True)
    with theirs:
        theirs.send(b"me")
        assert host.next() == ("frame", b"me")
        assert channel.peer == os.getpid()
        theirs.send(b"again")
        assert host.next() == ("frame", b"again")


def test_a_forged_sender_is_not_believed(host):
    """A child may name its own pid or what the kernel lets it; a pid that is nobody's is refused to it."""
    _, theirs = host.pair(attest=True)
    with theirs:
        forged = array("i", [4_000_000, os.getuid(), os.getgid()]).tobytes()
        with pytest.raises(OSError, match=r"No such process|not permitted"):
            theirs.sendmsg([b"me"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, forged)])


@pytest.mark.parametrize("size", [1, 5_000, MOST])
def test_all_that_a_dead_child_had_sent_is_read(host, size):
    """A few large frames reach the bound of one turn: that is not the end of them."""
    channel, theirs = host.pair(opened=False)
    theirs.setblocking(False)
    count = 0
    with theirs, contextlib.suppress(BlockingIOError):
        while count < 200:
            theirs.send(b"%d " % count + b"x" * (size - 4))
            count += 1
    assert count >= 3
    rounds = 0
    while not host.do(channel.drain):
        rounds += 1
    assert rounds >= count // FRAMES_A_TURN - 1
    heard = [host.next() for _ in range(count)]
    assert [int(frame.split()[0]) for _, frame in heard] == list(range(count))


@pytest.mark.parametrize("unread", [0, 1, 2, 8, 64])
def test_the_last_words_of_a_child_that_had_not_read_on_are_heard(host, unread):
    """Its end is told as ECONNRESET first, and only then come its words: 300 of 300 were lost."""
    for number in range(40):
        channel, theirs = host.pair(attest=number % 2 == 0)
        for _ in range(unread):
            host.do(partial(channel.send, b"steer"))
        with theirs:
            theirs.send(b"result")
        assert [host.next(), host.next()] == [("frame", b"result"), ("closed", None)]


def test_a_flood_does_not_keep_others_waiting(host):
    with contextlib.ExitStack() as stack:
        pairs = [host.pair() for _ in range(3)]
        for _, theirs in pairs:
            stack.enter_context(theirs)
        release = threading.Event()
        host.broker.post(release.wait)  # meanwhile all of it lies in the kernel
        for _ in range(200):
            pairs[0][1].send(b"flood")
        pairs[2][1].send(b"one")
        release.set()
        heard = []
        while not heard or heard[-1][0] != 2:
            heard.append(host.heard.get(timeout=SECONDS))
        assert len(heard) <= FRAMES_A_TURN + 1


def test_nothing_is_delivered_once_it_is_closed(host):
    channel, theirs = host.pair()
    channel._on_frame = lambda frame: (host.heard.put((0, "frame", frame)), channel.close())
    host.do(lambda: None)
    with theirs:
        release = threading.Event()
        host.broker.post(release.wait)
        for number in range(50):
            theirs.send(b"%d" % number)
        release.set()
        assert host.next() == ("frame", b"0")
        host.do(lambda: None)
        assert host.heard.empty()
        host.do(channel.close)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            theirs.send(b"more")


# Down.


def received(theirs):
    """The next message as a worker gets it: inline, or from the memfd that follows."""
    frame = theirs.recv(MOST + 1)
    message = protocol.unpack(frame)
    if message[0] != protocol.Down.MEMFD:
        return message
    _, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
    try:
        assert os.fstat(fd).st_size == message[1]
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        with pytest.raises(OSError, match="not permitted"):
            os.pwrite(fd, b"x", 0)
        return protocol.unpack(os.pread(fd, message[1], 0))
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, protocol.INLINE_BYTES - 100, protocol.INLINE_BYTES + 1, 3_000_000])
def test_a_large_message_goes_down_in_a_sealed_memfd(host, size):
    channel, theirs = host.pair()
    before = descriptors()
    with theirs:
        host.do(lambda: channel.send(protocol.pack("run", b"x" * size)))
        assert received(theirs) == ("run", b"x" * size)
        host.do(lambda: None)
        assert descriptors() == before


@given(st.lists(st.sampled_from([10, 3_000, 40_000, 60_000, 200_000]), min_size=1, max_size=40))
@settings(max_examples=30)
def test_what_a_child_does_not_read_waits_in_order(sizes):
    with hosting() as host:
        channel, theirs = host.pair()
        with theirs:
            for number, size in enumerate(sizes):
                host.do(lambda n=number, size=size: channel.send(protocol.pack("steer", n, b"x" * size)))
            large = sum(size > protocol.INLINE_BYTES for size in sizes)
            assert channel.waiting <= len(sizes) + large
            for number, size in enumerate(sizes):
                assert received(theirs) == ("steer", number, b"x" * size)
            host.do(lambda: None)
            assert channel.waiting == 0


@pytest.mark.parametrize("end", ["child", "host"])
def test_what_waits_for_a_dead_child_leaves_no_descriptor(host, end):
    before = descriptors()
    channel, theirs = host.pair()
    for number in range(400):
        host.do(
            lambda number=number: channel.send(protocol.pack("steer", number, b"x" * 60_000 * (number % 2)))
        )
    assert channel.waiting > 100
    if end == "child":
        theirs.close()
        assert host.next() == ("closed", None)
    host.do(channel.close)
    theirs.close()
    assert channel.waiting == 0
    host.do(lambda: channel.send(protocol.pack("steer", 1, b"x" * 60_000)))  # nobody is there: dropped
    assert descriptors() == before


def test_a_child_that_shuts_its_end_while_messages_wait_does_not_stop_the_loop(host):
    channel, theirs = host.pair()
    for number in range(400):
        host.do(lambda number=number: channel.send(b"steer %d" % number))
    assert channel.waiting > 0
    release = threading.Event()
    host.broker.post(release.wait)
    for _ in range(5):
        theirs.send(b"word")
    theirs.shutdown(socket.SHUT_RDWR)
    release.set()
    with theirs:
        assert [host.next() for _ in range(6)] == [("frame", b"word")] * 5 + [("closed", None)]
        host.do(lambda: channel.send(b"more"))
        host.do(channel.drain)
