"""A child as a process object of multiprocess."""

import gc
import os
import select

import multiprocess
import multiprocess.connection
import pytest

import sandbox_exec as sx
from children import faults, stubborn, watch
from children.watch import limits, wait_until

SECONDS = 20


@pytest.fixture
def executor(profile):
    with sx.SandboxExecutor(profile) as made:
        yield made


@pytest.mark.parametrize(
    ("target", "args", "code"),
    [
        (abs, (-1,), 0),
        (faults.leave, (7,), 1),
        (faults.divide, (1, 0), 1),
        (faults.kill_self, (11,), -11),
        (faults.leave_at_once, (4,), 4),
        (sx.Command(["sh", "-c", "exit 3"]), (), 3),
        (sx.Command(["/nowhere/at/all"]), (), 1),
    ],
    ids=str,
)
def test_exit_codes(executor, target, args, code):
    process = executor.launch(target, args).process
    process.join(SECONDS)
    assert (process.exitcode, process.is_alive()) == (code, False)


def test_a_living_one_is_watched_and_ended(executor):
    child = executor.launch(stubborn.in_sleep, name="sleeper", limits=limits())
    process = child.process
    watch.wait_for_event(child, "here")
    assert child.process is process
    assert (process.name, process.pid, process.daemon) == ("sleeper", child.pid, True)
    assert (process.is_alive(), process.exitcode) == (True, None)
    assert process in multiprocess.active_children()
    process.join(0.05)
    assert process.exitcode is None
    assert multiprocess.connection.wait([process.sentinel], 0) == []
    process.terminate()
    assert multiprocess.connection.wait([process.sentinel], SECONDS) == [process.sentinel]
    assert str(child.outcome(SECONDS).state) == "CANCELLED"
    assert process.exitcode != 0
    assert process not in multiprocess.active_children()
    process.close()
    with pytest.raises(ValueError, match="closed"):
        process.is_alive()


def test_kill(executor):
    child = executor.launch(stubborn.in_sleep)
    watch.wait_for_event(child, "here")
    child.process.kill()
    child.process.join(SECONDS)
    assert child.process.exitcode == -9


def test_it_was_started_already(executor):
    with pytest.raises(sx.ConfigError, match="started by its launch"):
        executor.launch(abs, (1,)).process.start()


def test_an_object_that_nobody_holds_keeps_no_descriptor(executor):
    executor.launch(abs, (1,)).outcome(SECONDS)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        child = executor.launch(abs, (1,))
        sentinel = child.process.sentinel
        assert select.select([sentinel], [], [], SECONDS)[0]
        child.outcome(SECONDS)
    multiprocess.active_children()
    del child
    gc.collect()
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 4)
