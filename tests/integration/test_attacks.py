"""What a fresh pair of eyes broke once: each stays mended."""

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import sandbox_exec as sx
from children import attacks


@pytest.fixture
def executor(profile):
    with sx.SandboxExecutor(profile) as executor:
        yield executor


def running(child):
    while child.state is not sx.SubagentState.RUNNING:
        time.sleep(0.005)
    return child


def test_a_channel_handed_to_a_sibling_wedges_nobody(executor, tmp_path):
    path = str(tmp_path / "s")
    flooding = executor.launch(attacks.floods_what_it_is_given, (path,), limits=sx.Limits(wall_seconds=8))
    next(event for event in flooding.events() if event.kind == "listening")
    handed = executor.launch(attacks.hands_its_channel_over, (path,))
    next(event for event in flooding.events() if event.kind == "flooding")
    time.sleep(0.3)
    started = time.monotonic()
    handed.kill()
    other = executor.launch(time.sleep, (600,), limits=sx.Limits(wall_seconds=0.5))
    assert handed.outcome(10).state is sx.SubagentState.CANCELLED
    assert other.outcome(10).error.classification == "TIMEOUT"
    flooding.kill()
    flooding.outcome(10)
    assert time.monotonic() - started < 8


def test_an_executor_works_inside_a_child(executor):
    place = str(Path(sx.__file__).parents[1])
    assert executor.launch(attacks.nested, ([place],)).outcome(40).unwrap() == 3


@pytest.mark.timeout(90)
def test_a_stopped_launcher_is_replaced_and_hangs_nobody(executor):
    executor.launch(len, ("",)).outcome(30)
    pid = executor._ward.launchers._launcher.process.pid
    os.kill(pid, signal.SIGSTOP)
    children = [executor.launch(time.sleep, (0,)) for _ in range(5)]
    waiting = children[-1]  # two clones were ready: they and their orders are served all the same
    while waiting.state is sx.SubagentState.PENDING:
        time.sleep(0.01)
    waiting.cancel()
    assert waiting.outcome(5).state is sx.SubagentState.CANCELLED  # it needs no launcher for that
    for child in children:
        if child is not waiting:
            outcome = child.outcome(30)
            assert outcome.state is sx.SubagentState.SUCCEEDED or "launcher" in outcome.error.message
    assert executor.launch(len, ("ab",)).outcome(30).value == 2


def test_a_far_deadline_is_only_far(executor):
    child = running(executor.launch(time.sleep, (600,), limits=sx.Limits(wall_seconds=1e9)))
    time.sleep(0.2)
    assert executor.launch(len, ("abc",)).outcome(30).value == 3
    assert child.alive
    child.kill()
    assert child.outcome(10).state is sx.SubagentState.CANCELLED


def test_a_reason_of_any_kind_ends_one_child_only(executor):
    other = running(executor.launch(time.sleep, (600,)))
    child = running(executor.launch(time.sleep, (600,)))
    child.cancel(reason=5)
    assert child.outcome(10).state is sx.SubagentState.CANCELLED
    assert other.alive


def test_no_thread_for_a_large_result_ends_that_child_only(executor, monkeypatch):
    other = running(executor.launch(time.sleep, (600,)))

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        outcome = executor.launch(lambda: "x" * 1_000_000).outcome(30)
    assert (outcome.state, outcome.error.classification) == (sx.SubagentState.INTERRUPTED, "HOST_LOST")
    assert "thread" in outcome.error.message
    assert other.alive
    assert executor.launch(lambda: "x" * 1_000_000).outcome(30).value == "x" * 1_000_000


def test_an_executor_that_nobody_holds_ends_with_its_last_child(profile):
    before = threading.active_count()
    child = sx.SandboxExecutor(profile).launch(time.sleep, (0.5,))
    gc.collect()
    assert child.outcome(30).state is sx.SubagentState.SUCCEEDED
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() == before


def test_a_collector_may_end_an_executor_on_its_own_loop(profile):
    executor = sx.SandboxExecutor(profile)
    child = running(executor.launch(time.sleep, (600,)))
    executor._ward.broker.post(executor.shutdown)
    assert child.outcome(20).state is sx.SubagentState.CANCELLED
    executor.shutdown()


def test_a_signal_handler_may_call_what_it_interrupted(executor):
    child = running(executor.launch(time.sleep, (600,)))
    ward, seen = executor._ward, []

    def handler(*_):
        seen.append((len(executor.children()), bool(child.steer("in a handler"))))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with ward.lock:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [(1, True)]


@pytest.mark.parametrize("timeout", [0, -1, 1e10, float("inf")])
def test_waits_of_every_length(executor, timeout):
    child = running(executor.launch(time.sleep, (0.3 if timeout > 0 else 600,)))
    if timeout > 0:
        assert child.outcome(timeout).state is sx.SubagentState.SUCCEEDED
        return
    for _ in range(100):
        with pytest.raises(TimeoutError):
            child.outcome(timeout)
    assert not child._waiters


@pytest.mark.parametrize(
    ("what", "given"),
    {
        "argv": {"target": sx.Command(["echo", "\ud800"])},
        "number": {"target": sx.Command(["echo", 3])},
        "number as cwd": {"target": len, "cwd": 3},
        "argv in all": {"target": sx.Command(["echo", *["x" * 100_000] * 40])},
        "env": {"target": len, "env": {"A": "\ud800"}},
        "cwd": {"target": len, "cwd": "/\ud800"},
        "stdin": {"target": len, "stdin": "\ud800"},
    }.items(),
    ids=str,
)
def test_odd_texts_are_refused_before_a_process_exists(executor, what, given):
    with pytest.raises(sx.ConfigError):
        executor.launch(**given)
    assert executor.statistics()["started"] == 0, what


def test_an_odd_name_of_a_variable_travels(executor):
    environment = executor.launch(lambda: dict(__import__("os").environ), env={"A\udc80": "x\udcff"}).outcome(
        30
    )
    assert environment.unwrap()["A\udc80"] == "x\udcff"


@pytest.mark.parametrize("limits", [{"open_files": 5}, {"memory_bytes": 15_000_000}], ids=str)
def test_limits_too_tight_for_an_interpreter_say_so(executor, limits):
    outcome = executor.launch(len, ("",), limits=sx.Limits(**limits)).outcome(30)
    assert outcome.error.classification in {"LAUNCH_FAILED", "MEMORY_LIMIT", "FILE_LIMIT"}
    assert len(outcome.error.message) > len("the worker ended before it was Ready")


def test_a_flood_makes_the_host_forget_no_frame_that_waits_to_be_sent(executor):
    """A source that had its fill lost its interest in being writable: the ask was never answered."""
    child = executor.launch(attacks.floods_then_asks)
    next(event for event in child.events() if event.kind == "ready")
    receipts = [child.steer("x" * 15_000) for _ in range(64)]
    assert child.outcome(20).unwrap() == "denied"
    assert {receipt.status for receipt in receipts} <= {"taken", "missed"}


def test_a_result_behind_many_dear_events_counts(executor):
    """Last words were read in at most 64 turns, which time may cut to a frame each."""
    for _ in range(5):
        assert executor.launch(attacks.dear_events_and_a_result, (300, 70)).outcome(30).unwrap() == 300


def test_events_are_cheap_for_the_loop_or_refused(executor):
    outcome = executor.launch(attacks.dear_event).outcome(30)
    assert outcome.error.classification == "NotSerializable"
    assert "equal or freely chosen hash" in outcome.error.message


@pytest.mark.parametrize(
    ("how", "ending"),
    {
        "raise": "ValueError",
        "exit": "SystemExit",
        "control": "\U00010400" * 200,
        "emit": None,
        "ask": None,
    }.items(),
)
def test_half_characters_are_no_broken_protocol(executor, how, ending):
    outcome = executor.launch(attacks.half_characters, (how,)).outcome(30)
    assert (outcome.error and outcome.error.classification) == ending
    if ending:
        assert len(outcome.error.message) == 4_000


def test_names_that_are_not_quite_strings_arrive_as_they_are(executor):
    child = executor.launch(attacks.odd_names)
    child.outcome(30).unwrap()
    assert [event.data for event in child.events() if event.source == "child"] == [{"a": 1}, {"a": [1]}]
