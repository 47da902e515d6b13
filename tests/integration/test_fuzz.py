"""Hostile children against a real host: tests/fuzz in short, in long, and results made to hurt."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from children import hostile
from fuzz.payloads import measure
from fuzz.siblings import Siblings, at_rest, resident
from fuzz.texts import TEXTS
from sandbox_exec import SandboxExecutor

RUN = Path(__file__).parents[1] / "fuzz" / "run.py"
LONG_SECONDS = float(os.environ.get("FUZZ_SECONDS", "1800"))
GROWTH = 16 << 20


def fuzz(seconds):
    # In a process of its own: an audit hook cannot be taken back, and memory is that of the host alone.
    command = [
        sys.executable,
        str(RUN),
        "--seconds",
        str(seconds),
        "--seed",
        os.environ.get("FUZZ_SEED", "1486437829"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120, check=False)
    print(done.stdout)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)


@pytest.mark.timeout(150)
def test_no_child_hurts_the_host_or_a_sibling():
    fuzz(10)


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 300)
def test_no_child_hurts_the_host_or_a_sibling_for_long():
    fuzz(LONG_SECONDS)


@pytest.fixture
def crowd():
    """An executor with two siblings who must not notice anything."""
    failures = []
    with SandboxExecutor() as executor:
        siblings = Siblings(executor, failures.append)
        measure(executor, siblings, "promised items")  # what comes up at first use
        yield executor, siblings, failures
        siblings.stop()
        assert not failures


REFUSED = {
    "100 MB of text": "RESULT_TOO_LARGE",
    "100 MB of items": "RESULT_TOO_LARGE",
    "colliding ints": "PROTOCOL_VIOLATION",
    "colliding ints, 64 each": "PROTOCOL_VIOLATION",
    "raw [[],[],...": "PROTOCOL_VIOLATION",
    "raw [[[[...": "PROTOCOL_VIOLATION",
    "promised items": "PROTOCOL_VIOLATION",
    "digits of one int": "PROTOCOL_VIOLATION",
    "digits of one Decimal": "PROTOCOL_VIOLATION",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_result_made_to_hurt_costs_little_and_the_siblings_nothing(name, crowd, record_property):
    executor, siblings, failures = crowd
    cost = measure(executor, siblings, name)
    record_property("cost", str(cost))
    print(cost)
    assert cost.ending == REFUSED.get(name, "SUCCEEDED")
    assert cost.growth < (GROWTH if name in REFUSED else 6 * GROWTH)  # what is restored is the caller's
    assert cost.seconds < 30.0  # a hang; a quiet machine takes a second or two
    assert max(cost.pongs, default=0.0) < 2.0
    assert not failures


def test_answers_that_a_child_does_not_read_do_not_pile_up(crowd):
    executor, _, failures = crowd
    before = peak = at_rest()
    child = executor.launch(hostile.ask_and_read_nothing, (3.0,))
    while child.alive:
        peak = max(peak, resident())
        time.sleep(0.02)
    assert child.outcome().error.classification == "PROTOCOL_VIOLATION"
    assert peak - before < GROWTH
    assert not failures
