"""A child that dies is told to everyone who waits, as what it was, and costs no slot."""

import signal
import subprocess
import sys
import time

import pytest

import sandbox_exec as sx
from children import faults, greedy, stubborn, watch
from children.watch import BY_SIGNAL, CANCELLED, NO_RESULT, SUCCEEDED, how, regression


@regression("amazon-science/concurry#5")
def test_whoever_waits_for_a_killed_child_wakes(case):
    began = time.monotonic()
    outcome = case.settle(case.launch(faults.kill_self, waiters=8), within=watch.PROMPT)
    assert how(outcome) == BY_SIGNAL
    assert (outcome.exit.signal, outcome.exit.code, outcome.exit.cause) == (9, None, "none")
    assert time.monotonic() - began < watch.PROMPT


@regression("pytest-dev/pytest-xdist#784")
def test_every_death_of_many_is_noticed(case):
    for _ in range(50):
        outcome = case.run(faults.kill_self)
        assert (how(outcome), outcome.exit.signal) == (BY_SIGNAL, 9)
    assert case.run(watch.ok).value == 1
    assert case.executor.statistics()["live"] == 0


@pytest.mark.parametrize("ending", ["allocation", "segfault", "cancel", "growth"])
@regression("ray-project/ray#45244")
def test_each_kind_of_death_has_its_name(case, ending):
    memory = watch.limits(memory_bytes=256_000_000)
    match ending:
        case "allocation":
            outcome = case.run(greedy.one_allocation, (10**11,), limits=memory)
            assert how(outcome) == ("FAILED", "MEMORY_LIMIT")
            assert outcome.error.type_name.endswith("MemoryError")
        case "segfault":
            outcome = case.run(faults.read_address_zero)
            assert (how(outcome), outcome.exit.signal) == (BY_SIGNAL, 11)
        case "cancel":
            child = case.launch(stubborn.in_sleep)
            watch.wait_for_event(child, "here")
            assert child.cancel()
            assert how(case.settle(child)) == CANCELLED
        case "growth":
            outcome = case.run(greedy.many_allocations, (10**6,), limits=memory)
            assert how(outcome) == ("FAILED", "MEMORY_LIMIT")
            assert outcome.exit.cause == "limit:memory"
            assert outcome.error.type_name.endswith("MemoryError")
            assert 50_000_000 < outcome.usage.peak_rss_bytes < 256_000_000


@regression("DaehwanKimLab/hisat-genotype#56")
def test_sys_exit_is_an_ending_with_its_argument(case):
    for argument in (1, "text", 256, True, -1):
        outcome = case.run(faults.leave, (argument,))
        assert how(outcome) == ("FAILED", "SystemExit")
        assert outcome.error.message == str(argument)
    for arguments in ((0,), (None,), ()):
        outcome = case.run(faults.leave, arguments)
        assert (how(outcome), outcome.value) == (SUCCEEDED, None)

    # What the operating system makes of it:
    naive = subprocess.run([sys.executable, "-c", "import sys; sys.exit(256)"], check=False)
    assert naive.returncode == 0


@pytest.mark.parametrize("ending", ["_exit", "abort", "exec"])
@regression("stdlib#os._exit")
def test_an_exit_status_alone_is_no_success(case, ending):
    match ending:
        case "_exit":
            outcome = case.run(faults.leave_at_once, (0,))
            assert (how(outcome), outcome.exit.code) == (NO_RESULT, 0)
            naive = subprocess.run([sys.executable, "-c", "import os; os._exit(0)"], check=False)
            assert naive.returncode == 0
        case "abort":
            outcome = case.run(faults.abort)
            assert (how(outcome), outcome.exit.signal) == (BY_SIGNAL, signal.SIGABRT)
        case "exec":
            outcome = case.run(faults.become, ("/bin/true",))
            assert (how(outcome), outcome.exit.code) == (NO_RESULT, 0)
    assert outcome.state is sx.SubagentState.INTERRUPTED
