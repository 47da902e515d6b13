"""A steer is taken or told as missed, and harms nobody."""

import random
import threading
import time

import pytest

import sandbox_exec as sx
from children import asking, stubborn, watch
from children.watch import CANCELLED, SUCCEEDED, Case, how, limits, regression


@pytest.mark.parametrize("ending", ["return", "cancel", "kill", "limit"])
@regression("NousResearch/hermes-agent#60543")
def test_a_steer_at_any_moment_is_taken_or_told_as_missed(case, ending):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    of_itself = 0.5 if ending == "return" else 600
    wall = {"wall_seconds": 1.0} if ending == "limit" else {}
    child = case.launch(stubborn.listen_between_work, (of_itself, seed), limits=limits(**wall))
    watch.wait_for_event(child, "here")
    receipts = []
    for number in range(500):
        if number == 250 and ending in {"cancel", "kill"}:
            getattr(child, ending)()
        receipts.append(child.steer(f"text {number}"))
        time.sleep(chance.random() / 200)
    outcome = case.settle(child)
    receipts.append(child.steer("past its end"))

    assert how(outcome) == {"return": SUCCEEDED, "limit": ("FAILED", "TIMEOUT")}.get(ending, CANCELLED)
    by_status = {"taken": [], "missed": [], "refused": []}
    for receipt in receipts:
        by_status[receipt.status].append(receipt.text)
        assert bool(receipt) == (receipt.status != "refused")
    assert by_status["missed"] == list(outcome.missed_steer)
    assert by_status["refused"][-1] == "past its end"
    assert len(by_status["taken"]) > 10
    if ending == "return":
        assert outcome.value == by_status["taken"]
    else:  # what the child saw until its last step
        seen = outcome.partial
        assert seen == by_status["taken"][: len(seen)]
        assert len(seen) > 10


@pytest.mark.parametrize("ending", ["return", "cancel", "kill"])
@regression("NousResearch/hermes-agent#30170")
def test_a_message_to_a_busy_child_does_it_no_harm(report, profile, tmp_path, ending):
    called, answer, registry = threading.Event(), threading.Event(), sx.ToolsetRegistry()

    @registry.tool("tools")
    def slow():
        called.set()
        assert answer.wait(50)
        return "answered"

    with Case(profile, tmp_path, registry=registry, toolsets=["tools"]) as case:
        try:
            send_to_a_busy_child(case, called, answer, ending)
        finally:
            answer.set()


def send_to_a_busy_child(case, called, answer, ending):
    child = case.launch(asking.ask_and_hear, ("slow",), limits=limits())
    assert called.wait(watch.PROMPT)
    receipts = [child.steer(f"hello {number}") for number in range(100)]
    with pytest.raises(TimeoutError):
        child.outcome(0.3)
    assert child.state is sx.SubagentState.RUNNING
    assert [bool(receipt) for receipt in receipts] == [True] * 64 + [False] * 36
    assert {receipt.status for receipt in receipts[:64]} == {"pending"}
    texts = [receipt.text for receipt in receipts[:64]]
    if ending == "return":
        answer.set()
    else:
        assert getattr(child, ending)()
    outcome = case.settle(child)
    if ending == "return":
        assert (how(outcome), outcome.value) == (SUCCEEDED, ("answered", texts))
        assert outcome.missed_steer == ()
    else:
        assert how(outcome) == CANCELLED
        assert outcome.missed_steer == tuple(texts)
    assert {receipt.status for receipt in receipts[:64]} == {"taken" if ending == "return" else "missed"}
