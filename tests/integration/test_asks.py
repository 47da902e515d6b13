"""Host tools: granted by what the host holds, run off the loop, never for ever."""

import itertools
import threading
import time

import pytest

import sandbox_exec as sx
from children import asking
from sandbox_exec.confinement.plan import compile_plan
from sandbox_exec.confinement.profile import load_profile
from sandbox_exec.engine import assignment
from sandbox_exec.engine.asks import Tool
from sandbox_exec.engine.child import Child

numbers = itertools.count()


def echo(pause=0.0, **args):
    time.sleep(pause)
    return args


@pytest.fixture
def executor(profile):
    with sx.SandboxExecutor(profile) as executor:
        yield executor


def launch(executor, target, *args, **tools):
    """What a public `toolsets=` will do: names to functions, held by the host."""
    grants = {name: tool if isinstance(tool, Tool) else Tool(tool, 30.0) for name, tool in tools.items()}
    ward, identity = executor._opened(), f"sa-asks-{next(numbers)}"
    frame = assignment.packed(identity, target, args, {}, (), {}, None, has_stdin=False)
    child = Child(ward, identity, "asks")
    ward.launch(child, compile_plan(load_profile("none")), frame, grants=grants)
    return child


def test_a_granted_tool_answers_and_runs_on_no_thread_of_the_loops(executor):
    threads = []

    def where(**args):
        threads.append(threading.current_thread().name)
        return {"args": args, "kept": (1, b"x", 2.5)}

    child = launch(executor, asking.once, "where", {"a": [1, None]}, where=where)
    assert child.outcome(30).unwrap() == {"args": {"a": [1, None]}, "kept": (1, b"x", 2.5)}
    assert threads
    assert all(name.startswith("sandbox-exec tool") for name in threads)


def test_an_answer_larger_than_a_frame_arrives_whole(executor):
    child = launch(executor, asking.once, "big", {}, big=lambda: "x" * 3_000_000)
    assert child.outcome(30).unwrap() == "x" * 3_000_000


@pytest.mark.parametrize("name", ["absent", "Echo", "echo ", "\u0435cho", ""])
def test_what_is_not_granted_by_this_very_name_is_denied_and_recorded(executor, name):
    outcome = launch(executor, asking.denied, name, echo=echo).outcome(30)
    assert outcome.unwrap().startswith("denied: ")
    assert outcome.denials == (name,)


def test_a_tool_that_raises_fails_for_the_child_alone(executor):
    def broken():
        raise ValueError("no such note")

    assert launch(executor, asking.failing, "broken", broken=broken).outcome(30).unwrap() == (
        "failed: ValueError: no such note"
    )
    assert launch(executor, asking.in_turn, 50, echo=echo).outcome(30).unwrap() == list(range(50))


def test_an_answer_that_cannot_be_sent_fails_for_the_child_alone(executor):
    got = launch(executor, asking.failing, "odd", odd=threading.Lock).outcome(30).unwrap()
    assert got.startswith("failed: TypeError")


def test_a_tool_past_its_deadline_is_given_up_and_replaced(executor):
    release = threading.Event()
    try:
        slow = Tool(lambda: release.wait(60), 0.3)
        child = launch(executor, asking.failing, "slow", slow=slow)
        assert child.outcome(30).unwrap() == "failed: the tool 'slow' did not answer within 0.3 s"
        assert executor._ward.asks._abandoned == 1
        assert launch(executor, asking.in_turn, 20, echo=echo).outcome(30).unwrap() == list(range(20))
    finally:
        release.set()
    deadline = time.monotonic() + 10
    while executor._ward.asks._abandoned and time.monotonic() < deadline:
        time.sleep(0.01)
    assert executor._ward.asks._abandoned == 0


def test_four_asks_at_once_and_the_fifth_is_busy(executor):
    assert launch(executor, asking.from_threads, 4, echo=echo).outcome(30).unwrap() == ["0", "1", "2", "3"]
    got = launch(executor, asking.from_threads, 6, echo=echo).outcome(30).unwrap()
    assert got.count("busy") == 2
    assert len(got) == 6


def test_one_slow_ask_delays_no_other_childs_cancel(executor):
    release = threading.Event()
    try:
        hanging = [launch(executor, asking.failing, "slow", slow=lambda: release.wait(60)) for _ in range(12)]
        other = executor.launch(time.sleep, (600,))
        while other.state is not sx.SubagentState.RUNNING:
            time.sleep(0.01)
        other.cancel()
        assert other.outcome(10).state is sx.SubagentState.CANCELLED
        assert all(child.alive for child in hanging)
        hanging[0].cancel()
        assert hanging[0].outcome(30).state is sx.SubagentState.CANCELLED
    finally:
        release.set()


def test_steers_during_one_long_ask_wait_for_the_boundary_and_hurt_nobody(executor):
    child = launch(executor, asking.long_one, echo=echo)
    next(event for event in child.events() if event.kind == "asking")
    receipts = [child.steer(f"hello {number}") for number in range(100)]
    taken = [receipt for receipt in receipts if receipt]
    assert child.outcome(30).unwrap() == [receipt.text for receipt in taken]
    assert {receipt.status for receipt in taken} == {"taken"}
    assert len(taken) == 64


def test_arguments_are_bounded_in_the_child_already(executor):
    assert launch(executor, asking.too_many_values, echo=echo).outcome(30).unwrap() == "TooLarge"
