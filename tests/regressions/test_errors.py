"""Exceptions travel as text; what cannot travel is told to whoever sent it."""

import pickle

import pytest

import sandbox_exec as sx
from children import faults, watch
from children.watch import how, regression


class Unsendable:
    def __reduce__(self):
        raise RuntimeError("no")


@regression("python/cpython#103061")
def test_an_exception_that_cannot_be_rebuilt_is_told(case):
    outcome = case.run(faults.throw_class, ("TwoArguments", 1, 2))
    assert how(outcome) == ("FAILED", "TwoArguments")
    assert outcome.error.message == "12"
    assert outcome.error.type_name == "children.faults.TwoArguments"
    assert "raise globals()[name]" in outcome.error.traceback_text

    with watch.unpickling_ourselves(), pytest.raises(TypeError, match="missing 1 required"):
        pickle.loads(pickle.dumps(faults.TwoArguments(1, 2)))


@regression("python/cpython#74734")
def test_an_argument_that_cannot_be_sent_is_refused_by_name(case, profile):
    for options, name in (
        ({"args": (1, Unsendable())}, "argument 1"),
        ({"kwargs": {"given": Unsendable()}}, "argument 'given'"),
        ({"args": ([[Unsendable()]],)}, "argument 0"),
    ):
        with pytest.raises(sx.ConfigError, match=name):
            case.executor.launch(watch.ok, profile=profile, **options)
    assert case.executor.children() == []
    assert case.executor.statistics()["started"] == 0
