"""Asking a child: to end, by a ladder that ends in SIGKILL, and to listen, by steers that are never lost."""

import contextlib
import os
import random
import signal
import threading
import time

import pytest

import sandbox_exec as sx
from children import faults, stubborn, watch
from children.watch import CANCELLED, GRACE, PROMPT, SUCCEEDED, Case, how, limits, signals_sent


@pytest.fixture
def case(profile, tmp_path):
    with Case(profile, tmp_path) as case:
        yield case


def begun(case, target, arguments=(), **options):
    options = {"limits": limits(), **options}
    child = case.launch(target, arguments, **options)
    watch.wait_for_event(child, "here")
    if target is stubborn.stopped:
        assert watch.wait_until(lambda: watch.is_stopped(child.pid))
    if target in {stubborn.in_shell, stubborn.in_subprocess}:
        assert watch.wait_until(lambda: "sleep 600" in case.tree(child).values())
    return child


# Cancel ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", [stubborn.at_boundaries, stubborn.in_sleep, stubborn.in_loop, stubborn.in_subprocess]
)
def test_a_child_that_listens_ends_without_a_signal_that_kills(case, target):
    child = begun(case, target, limits=limits(grace_seconds=5.0))
    assert child.cancel()
    outcome = case.settle(child, within=4)  # before the second rung
    assert how(outcome) == CANCELLED
    assert (outcome.exit.code, outcome.exit.signal) == (0, None)
    assert "SIGTERM" not in signals_sent(child)
    with pytest.raises(sx.ChildCancelled):
        outcome.unwrap()
    assert not child.cancel()
    assert not child.kill()


def test_clean_up_runs_and_is_in_the_outcome(case):
    child = begun(case, stubborn.with_last_words, limits=limits(grace_seconds=5.0))
    child.cancel("enough of it")
    outcome = case.settle(child)
    assert (how(outcome), outcome.partial) == (CANCELLED, "cleaned up")
    assert (case.place_of(child) / "cleaned").read_text() == "up"
    reasons = [event.data.get("reason") for event in child.events() if event.kind == "ending"]
    assert reasons[0] == "enough of it"


@pytest.mark.parametrize(
    ("target", "value"),
    [(stubborn.swallow, "finished all the same"), (stubborn.finish_on_sigterm, "finished on SIGTERM")],
)
def test_a_result_before_the_kill_is_a_success(case, target, value):
    child = begun(case, target)
    child.cancel()
    outcome = case.settle(child)
    assert (how(outcome), outcome.value) == (SUCCEEDED, value)


@pytest.mark.parametrize(
    ("target", "number", "rungs"),
    [
        (stubborn.swallow_and_go_on, signal.SIGTERM, ["SIGTERM"]),
        (stubborn.deaf, signal.SIGKILL, ["SIGTERM", "SIGKILL"]),
        (stubborn.deaf_in_c, signal.SIGKILL, ["SIGTERM", "SIGKILL"]),
        (stubborn.stopped, signal.SIGKILL, ["SIGTERM", "SIGKILL"]),
        (stubborn.in_shell, signal.SIGTERM, ["SIGTERM"]),
    ],
)
def test_the_ladder_is_climbed_as_far_as_it_takes(case, target, number, rungs):
    child = begun(case, target)
    began = time.monotonic()
    child.cancel()
    assert child.cancel()  # asking twice neither hastens nor delays
    outcome = case.settle(child)
    took = time.monotonic() - began
    assert how(outcome) == CANCELLED
    assert outcome.exit.signal == number
    assert signals_sent(child) == rungs
    assert GRACE * len(rungs) <= took + 0.01
    assert took < 2 * GRACE + 1


def test_a_command_begins_with_the_second_rung(case):
    child = case.launch(sx.Command(["sleep", "600"]), limits=limits(grace_seconds=5.0))
    watch.wait_until(lambda: "sleep 600" in case.tree(child).values())
    child.cancel()
    outcome = case.settle(child, within=4)
    assert (how(outcome), outcome.exit.signal) == (CANCELLED, signal.SIGTERM)

    deaf = case.launch(sx.Command(["sh", "-c", "trap '' TERM; sleep 600"]), limits=limits())
    watch.wait_until(lambda: "sleep 600" in case.tree(deaf).values())
    deaf.cancel()
    outcome = case.settle(deaf)
    assert (how(outcome), outcome.exit.signal) == (CANCELLED, signal.SIGKILL)


@pytest.mark.parametrize(
    "target", [stubborn.at_boundaries, stubborn.in_loop, stubborn.deaf, stubborn.deaf_in_c, stubborn.stopped]
)
def test_kill_asks_nobody(case, target):
    child = begun(case, target, limits=limits(grace_seconds=5.0))
    assert child.kill()
    outcome = case.settle(child)
    assert (how(outcome), outcome.exit.signal) == (CANCELLED, signal.SIGKILL)
    assert signals_sent(child) == ["SIGKILL"]


def test_kill_overtakes_a_cancel_that_waits(case):
    child = begun(case, stubborn.deaf, limits=limits(grace_seconds=5.0))
    child.cancel()
    with pytest.raises(TimeoutError):
        child.outcome(0.2)
    assert child.state is sx.SubagentState.CANCEL_REQUESTED
    child.kill()
    assert how(case.settle(child)) == CANCELLED


def test_cancel_at_any_moment_of_a_short_life_has_one_true_ending(case):
    """Before the spawn, while it boots, while it runs, when its result is on the way."""
    endings = set()
    for number in range(60):
        child = case.launch(faults.give, (number,), limits=limits(), waiters=1)
        time.sleep(number / 1500)
        (child.cancel if number % 2 else child.kill)()
        outcome = case.settle(child)
        assert (how(outcome), outcome.value) in {(SUCCEEDED, number), (CANCELLED, None)}
        endings.add(how(outcome))
    assert endings == {SUCCEEDED, CANCELLED}


def test_an_exception_of_the_same_class_is_no_cancel(case):
    outcome = case.run(stubborn.cancelled_of_its_own_accord)
    assert how(outcome) == ("FAILED", "Cancelled")


def test_who_never_started_never_does(profile, tmp_path):
    with Case(profile, tmp_path, max_children=2) as case:
        running = [begun(case, stubborn.in_sleep) for _ in range(2)]
        folder = tmp_path / "touched"
        folder.mkdir()
        queued = [
            case.launch(stubborn.touch, (str(folder / str(number)),), waiters=1) for number in range(50)
        ]
        assert case.executor.statistics()["queued"] == 50
        for child in queued:
            assert child.state is sx.SubagentState.PENDING
            assert child.cancel()
        for child in queued:
            outcome = case.settle(child)
            assert how(outcome) == CANCELLED
            assert child.pid is None
            assert watch.event_kinds(child)[0] == "queued"
            assert not {"spawned", "running"} & set(watch.event_kinds(child))
        last = case.launch(stubborn.touch, (str(folder / "last"),))
        for child in running:
            child.cancel()
            assert how(case.settle(child)) == CANCELLED
        assert case.settle(last).value == str(folder / "last")
        assert os.listdir(folder) == ["last"]


def test_queued_children_start_in_order(profile, tmp_path):
    with Case(profile, tmp_path, max_children=1) as case:
        children = [case.launch(faults.give, (number,), waiters=0) for number in range(10)]
        started = [case.settle(child).started_at for child in children]
        assert started == sorted(started)


def test_shutdown_ends_the_newest_first(profile, tmp_path):
    with Case(profile, tmp_path) as case:
        children = [begun(case, stubborn.in_sleep) for _ in range(4)]
        case.executor.shutdown()
        asked = [next(event.at for event in child.events() if event.kind == "ending") for child in children]
        assert asked == sorted(asked, reverse=True)
        assert all(how(child.outcome(0)) == CANCELLED for child in children)
        with pytest.raises(sx.ExecutorClosed):
            case.executor.launch(watch.ok, profile=profile)
        case.executor.shutdown()
        case.executor = sx.SandboxExecutor(profile)


def test_a_timeout_of_the_waiter_leaves_the_child_alone(case):
    child = begun(case, stubborn.collect_steers, ("stop",))
    with pytest.raises(TimeoutError, match=child.id):
        child.outcome(0.05)
    assert child.alive
    child.steer("stop")
    assert how(case.settle(child)) == SUCCEEDED


# Steers ---------------------------------------------------------------------------------------------


def test_a_steer_is_taken_once_and_in_order(case):
    child = begun(case, stubborn.collect_steers, ("stop",))
    receipts = []
    for number in range(200):
        receipt = child.steer(f"text {number} \0 \N{SNAKE}")
        receipts.append(receipt)
        if not receipt:  # 64 were pending
            assert "64" in receipt.reason
            time.sleep(0.01)
    last = child.steer("stop")
    while not last:
        last = child.steer("stop")
    outcome = case.settle(child)
    accepted = [receipt for receipt in (*receipts, last) if receipt]
    assert outcome.value == [receipt.text for receipt in accepted]
    assert {receipt.status for receipt in accepted} == {"taken"}
    assert outcome.missed_steer == ()


def test_what_may_be_sent_and_what_may_not(case):
    child = begun(case, stubborn.in_sleep)
    for text in ("", " \n\t", "x" * 16_001):
        receipt = child.steer(text)
        assert not receipt
        assert receipt.status == "refused"
        assert receipt.reason
    longest = child.steer("x" * 16_000)
    assert longest
    assert longest.status == "pending"
    kept = [child.steer(f"text {number}") for number in range(63)]
    assert all(kept)
    beyond = child.steer("one more")
    assert (bool(beyond), beyond.status) == (False, "refused")
    child.cancel()
    outcome = case.settle(child)
    assert outcome.missed_steer == tuple(receipt.text for receipt in (longest, *kept))
    assert {receipt.status for receipt in (longest, *kept)} == {"missed"}
    late = child.steer("too late")
    assert (bool(late), late.status) == (False, "refused")


def test_steers_before_the_start_wait_for_it(profile, tmp_path):
    with Case(profile, tmp_path, max_children=1) as case:
        first = begun(case, stubborn.in_sleep)
        child = case.launch(stubborn.collect_steers, ("stop",))
        assert child.steer("early")
        assert child.steer("stop")
        first.cancel()
        assert case.settle(child).value == ["early", "stop"]


def test_steers_at_random_times_are_all_accounted_for(case):
    """The report's own: texts that arrive between a drain and the next step, and past the end."""
    chance = random.Random(7)
    for _ in range(4):
        child = case.launch(stubborn.collect_steers_for, (0.4,))
        receipts = []
        while child.alive:
            receipts.append(child.steer(f"text {len(receipts)}"))
            time.sleep(chance.random() / 500)
        receipts += [child.steer("past the end") for _ in range(10)]
        outcome = case.settle(child)
        by_status = {
            status: [receipt.text for receipt in receipts if receipt.status == status]
            for status in ("pending", "taken", "missed", "refused")
        }
        assert by_status["pending"] == []
        assert by_status["taken"] == outcome.value
        assert by_status["missed"] == list(outcome.missed_steer)
        assert len(by_status["taken"]) > 10
        assert "past the end" in by_status["refused"]


@pytest.mark.parametrize(
    "count", [100, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_no_result_is_lost_behind_unread_steers(profile, tmp_path, count):
    """With a message of the host's unread, the first thing that the host reads is ECONNRESET."""
    with Case(profile, tmp_path, max_children=16) as case:
        for start in range(0, count, 100):
            children = []
            for number in range(start, start + 100):
                child = case.executor.launch(faults.give, (number,), profile=profile)
                children.append((child, [child.steer(f"text {n}") for n in range(1 + number % 64)]))
            for number, (child, receipts) in enumerate(children, start):
                outcome = child.outcome(30)
                assert (how(outcome), outcome.value) == (SUCCEEDED, number)
                assert [receipt.status for receipt in receipts if receipt] == ["missed"] * len(
                    outcome.missed_steer
                )


@pytest.mark.parametrize("size", [100, 5_000, 300_000])
def test_a_large_result_behind_unread_steers_is_whole(case, size):
    for _ in range(10):
        child = case.launch(faults.give_long, (size,), waiters=0)
        for number in range(64):
            child.steer(f"text {number} " + "x" * 5_000)
        assert case.settle(child).value == "A" * size


def test_steers_may_come_from_many_threads(case):
    child = begun(case, stubborn.collect_steers, ("stop",))
    sent = []

    def send(name):
        for number in range(50):
            while not (receipt := child.steer(f"{name} {number}")):
                time.sleep(0.001)
            sent.append(receipt)

    threads = [threading.Thread(target=send, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while not child.steer("stop"):
        time.sleep(0.001)
    *texts, last = case.settle(child).value
    assert last == "stop"
    assert sorted(texts) == sorted(receipt.text for receipt in sent)
    for name in "abcd":  # each thread's own in its order
        assert [text for text in texts if text[0] == name] == [f"{name} {number}" for number in range(50)]


# Events and asks ------------------------------------------------------------------------------------


def test_events_are_told_in_order_to_each_who_asks(case):
    child = case.launch(stubborn.emit_many, (300,))
    case.settle(child)
    for _ in range(2):
        told = [event.data["number"] for event in child.events() if event.kind == "step"]
        assert told == list(range(300))
    kinds = watch.event_kinds(child)
    assert kinds == ["queued", "spawned", "ready", "running", "ended"]


def test_events_beyond_the_bound_are_counted(case):
    child = case.launch(stubborn.emit_many, (20_000,))
    case.settle(child, within=20)
    events = list(child.events())
    assert len(events) + sum(event.dropped for event in events) >= 20_000
    assert len(events) < 2_000
    assert events[-1].kind == "ended"
    told = [event.data["number"] for event in events if event.kind == "step"]
    assert told == list(range(told[0], 20_000))


def test_a_tool_that_was_not_granted_is_denied(case):
    outcome = case.run(stubborn.ask_for, ("rm",))
    assert how(outcome) == SUCCEEDED
    assert "rm" in outcome.value
    assert outcome.denials == ("rm",)


def test_cancel_reaches_a_child_among_flooding_ones(case):
    with contextlib.ExitStack() as end:
        for _ in range(4):
            flood = case.launch(sx.Command(["sh", "-c", "yes & yes >&2"]), limits=limits(output_bytes=1000))
            end.callback(flood.kill)
        for _ in range(4):
            flood = case.launch(stubborn.emit_many, (10**9,))
            watch.wait_for_event(flood, "step")
            end.callback(flood.kill)
        child = begun(case, stubborn.in_sleep)
        began = time.monotonic()
        child.cancel()
        assert how(case.settle(child)) == CANCELLED
        assert time.monotonic() - began < PROMPT
