"""The loop's shares: who has its fill waits for the others, and a flooded loop lets go now and then."""

import contextlib
import os
import threading
import time

import pytest

from sandbox_exec.engine.broker import Broker

SECONDS = 10.0


class Source:
    """A pipe whose turns read `share` bytes, and say that it had its fill."""

    def __init__(self, broker, story, name, share=1 << 16):
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.broker, self.story, self.name, self.share = broker, story, name, share
        broker.post(lambda: broker.watch(self.reader, self.turn))

    def turn(self):
        data = os.read(self.reader, self.share)
        self.story.append((self.name, len(data), time.monotonic()))
        if not data:
            self.close()
        elif len(data) == self.share:
            self.broker.sated(self.reader)

    def close(self):
        if self.reader >= 0:
            self.broker.forget(self.reader)
            os.close(self.reader)
            self.reader = -1


@pytest.fixture
def loop():
    errors, story, sources = [], [], []
    broker = Broker(errors.append)

    def source(*args):
        sources.append(Source(broker, story, *args))
        return sources[-1]

    yield broker, story, source
    done = threading.Event()

    def close():
        for each in sources:
            each.close()
            if each.writer >= 0:
                os.close(each.writer)
        done.set()

    broker.post(close)
    assert done.wait(SECONDS)
    broker.close()
    assert errors == []


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_everything_of_a_source_that_has_its_fill_is_read_in_the_end(loop):
    _, story, source = loop
    for number in range(8):
        with contextlib.suppress(BlockingIOError):
            os.write(source(number, 512).writer, b"x" * 8_192)
    until(lambda: sum(size for _, size, _ in story) == 8 * 8_192)


def test_one_that_has_its_fill_waits_for_those_that_had_it_before(loop):
    broker, story, source = loop
    sources = [source(number, 4_096) for number in range(4)]
    held = threading.Event()
    broker.post(held.wait)
    for each in sources:
        os.write(each.writer, b"x" * 4_096 * 6)
    held.set()
    until(lambda: sum(size for _, size, _ in story) == 4 * 6 * 4_096)
    order = [name for name, _, _ in story]
    assert order == [*range(4)] * 6  # by turns


def test_a_loop_that_is_flooded_lets_go_for_as_long_as_it_was_kept(loop):
    broker, story, source = loop
    flood = source("flood", 1)
    idle = []
    real = broker._epoll

    class Watched:
        def __getattr__(self, name):
            return getattr(real, name)

        def poll(self, timeout, most):
            if timeout is not None and timeout > 0:
                idle.append(timeout)
            return real.poll(timeout, most)

    turn = flood.turn

    def slow():
        busy(0.0005)
        turn()

    def begin():
        broker._epoll = Watched()
        broker._turns[flood.reader] = slow

    os.write(flood.writer, b"x" * 40)
    broker.post(begin)
    until(lambda: len(story) == 40)
    assert len(idle) >= 5  # 20 ms of turns, a rest after each millisecond


def test_a_calm_source_has_its_turn_between_two_of_a_flood(loop):
    broker, story, source = loop
    flood, calm = source("flood", 1), source("calm")
    held = threading.Event()
    broker.post(held.wait)
    os.write(flood.writer, b"x" * 500)
    os.write(calm.writer, b"once")
    held.set()
    until(lambda: len(story) == 501)
    assert [name for name, _, _ in story].index("calm") <= 2


def test_who_had_its_fill_may_be_forgotten_and_its_number_given_away(loop):
    broker, story, source = loop
    for _ in range(50):
        gone = source("gone", 1)
        done = threading.Event()
        os.write(gone.writer, b"xyz" * 100)
        until(lambda: story)

        def forget(gone=gone, done=done):
            gone.close()
            done.set()

        broker.post(forget)
        assert done.wait(SECONDS)
        again = source("again")
        os.write(again.writer, b"x")
        until(lambda: story and story[-1][0] == "again")
        story.clear()
        broker.post(again.close)
        os.close(again.writer)
        again.writer = -1


def test_a_source_that_waits_to_write_is_asked_to_rest_no_more(loop):
    broker, story, source = loop
    one = source("one", 2)
    done = threading.Event()

    def both():
        broker.sated(one.reader)
        broker.watch_writable(one.reader, on=False)
        done.set()

    broker.post(both)
    assert done.wait(SECONDS)
    os.write(one.writer, b"xx")
    until(lambda: story)


def test_an_idle_loop_does_not_wake(loop):
    broker, _, source = loop
    for number in range(3):
        os.write(source(number, 4).writer, b"abcdefgh")
    time.sleep(0.05)
    tid = broker._thread.native_id

    def switches():
        with open(f"/proc/self/task/{tid}/status") as file:
            return int(file.read().rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])

    before = switches()
    time.sleep(0.2)
    assert switches() - before <= 1
