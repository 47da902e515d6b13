"""What travels, travels exactly or is refused with a reason, however large it is."""

import json
import math
import subprocess

import pytest

import sandbox_exec as sx
from children import faults, watch
from children.watch import SUCCEEDED, Growth, how, regression


@regression("noxdafox/pebble#29")
def test_a_result_of_any_size_is_delivered_or_refused(case):
    limit = 1_000_000
    limits = watch.limits(result_bytes=limit, memory_bytes=2_500_000_000)
    with Growth() as growth:
        for power in range(11):
            outcome = case.run(faults.give_long, (10**power,), limits=limits, within=20)
            if 10**power <= limit:
                assert how(outcome) == SUCCEEDED
                assert outcome.value == "A" * 10**power
            elif 10**power < limits.memory_bytes:
                assert how(outcome) == ("FAILED", "RESULT_TOO_LARGE")
                assert str(limit) in outcome.error.message
                assert str(10**power) in outcome.error.message
            else:
                assert how(outcome) == ("FAILED", "MEMORY_LIMIT")
                assert outcome.error.type_name.endswith("MemoryError")
            del outcome
    assert (
        growth.bytes < 2 * limit + 4_000_000
    )  # 1 MB result, as text and as value, beside the first launch's own


@pytest.mark.parametrize("way", ["argument", "stdin", "argv"])
@regression("mattpocock/sandcastle#387")
def test_arguments_travel_in_messages(case, profile, way):
    match way:
        case "argument":
            outcome = case.run(len, ("p" * 140_000,))
            assert (how(outcome), outcome.value) == (SUCCEEDED, 140_000)
        case "stdin":
            outcome = case.run(sx.Command(["cat"]), stdin=b"p" * 5_000_000, within=20)
            assert (how(outcome), outcome.stdout.total_bytes) == (SUCCEEDED, 5_000_000)
        case "argv":
            with pytest.raises(sx.ConfigError, match="140,000"):
                case.executor.launch(sx.Command(["echo", "p" * 140_000]), profile=profile)
            assert case.executor.statistics()["started"] == 0
            with pytest.raises(OSError, match="too long"):
                subprocess.run(["echo", "p" * 140_000], check=False)


@regression("modelcontextprotocol/python-sdk#3385")
def test_numbers_come_back_exactly(case):
    outcome = case.run(lambda: [float("nan"), float("inf"), -0.0, 10**5000, 2**63, 1e308])
    assert how(outcome) == SUCCEEDED
    nan, infinite, zero, *others = outcome.value
    assert math.isnan(nan)
    assert infinite == math.inf
    assert (zero, math.copysign(1, zero)) == (0.0, -1.0)
    assert others == [10**5000, 2**63, 1e308]
    assert [type(item) for item in outcome.value] == [float, float, float, int, int, float]

    with pytest.raises(ValueError, match="4300"):
        json.loads("1" * 5000)
