"""Clocks that jump, and counts that must not grow."""

import time

import pytest

from children import hosts, watch
from children.watch import SUCCEEDED, how, regression


@regression("mitogen-hq/mitogen#200")
def test_a_clock_that_is_set_ends_nobody(case, monkeypatch):
    real, jump = time.time, 0
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    child = case.launch(time.sleep, (2,), limits=watch.limits(wall_seconds=5))
    began = time.monotonic()
    watch.wait_for_event(child, "running")
    for jump in (-3600, 3600, 0):  # noqa: B007 the clock above reads it
        with pytest.raises(TimeoutError):
            child.outcome(0.4)
    outcome = case.settle(child)
    assert how(outcome) == SUCCEEDED
    assert time.monotonic() - began < 5
    assert 1.9 < outcome.usage.wall_seconds < 5


@regression("automl/pynisher#26")
def test_a_thousand_launches_leave_the_descriptors_as_they_were(report, profile):
    told = hosts.run("launch_a_thousand", profile, seconds=55)
    assert told["descriptors before"] == told["descriptors after"]
    warm, done = (sorted(told[f"descriptors when {when}"].values()) for when in ("warm", "done"))
    assert warm == done
    assert told["endings"] == {"SUCCEEDED": 1000}
