"""What a child leaves lying about, and characters that end a string elsewhere."""

import contextlib
import os
import tempfile

import pytest

import sandbox_exec as sx
from children import asking, faults, stubborn, watch
from children.watch import BY_SIGNAL, CANCELLED, SUCCEEDED, how, regression


def names_in(folder):
    with contextlib.suppress(OSError):
        return set(os.listdir(folder))
    return set()


@pytest.mark.parametrize("end", ["by itself", "kill", "cancel"])
@regression("joblib/joblib#198")
def test_a_killed_child_leaves_nothing_of_ours(case, end):
    """A name in /dev/shm, in the temporary folder or in its directory that the child made itself is its own.

    Under a profile without a private scratch these places are the host's, and what a killed child made there
    stays, as with any program. What is checked is that nothing else appeared: the executor makes no file.
    """
    shared = f"{case.mark}-shared"
    places = [tempfile.gettempdir(), "/dev/shm"]
    before = {place: names_in(place) for place in places}
    child = case.launch(stubborn.leave_files, (shared, end == "by itself"), limits=watch.limits())
    try:
        if end != "by itself":
            watch.wait_for_event(child, "here")
            assert getattr(child, end)()
        outcome = case.settle(child)
        assert how(outcome) == (BY_SIGNAL if end == "by itself" else CANCELLED)
        if end != "cancel":
            assert outcome.exit.signal == 9
        temporary, memory = (names_in(place) - before[place] for place in places)
        named = {event.data["name"] for event in child.events() if event.kind == "here"}
        assert temporary == named
        assert {name for name in memory if case.mark in name or "sandbox" in name} <= {shared}
        assert names_in(case.place_of(child)) == {"own"}
    finally:
        for name in names_in(places[0]) - before[places[0]]:
            os.unlink(os.path.join(places[0], name))
        with contextlib.suppress(OSError):
            os.unlink(f"/dev/shm/{shared}")


REFUSED = {
    "argument of a command": {"target": sx.Command(["echo", "a\0b"])},
    "program": {"target": sx.Command(["echo\0"])},
    "name of a variable": {"target": watch.ok, "env": {"A\0": "b"}},
    "variable": {"target": watch.ok, "env": {"A": "b\0"}},
    "directory": {"target": watch.ok, "cwd": "x\0"},
    "profile": {"target": watch.ok, "profile": "a\0"},
}


@pytest.mark.parametrize("what", [*REFUSED, "profile of an executor", "imports", "interpreter", "texts"])
@regression("NousResearch/hermes-agent#77988")
def test_a_nul_character_is_refused_by_name_or_travels_unharmed(case, profile, what):
    match what:
        case "profile of an executor":
            with pytest.raises(sx.ConfigError, match="profile"):
                sx.SandboxExecutor("a\0")
        case "imports":
            with pytest.raises(sx.ConfigError, match="imports"):
                sx.SandboxExecutor(profile, imports=["a\0"])
        case "interpreter":
            with pytest.raises(sx.ConfigError, match=r"python='python\\x00'"):
                sx.SandboxExecutor(profile, python="python\0")
        case "texts":
            child = case.launch(stubborn.collect_steers, ("stop\0",), name="a\0b")
            receipts = [child.steer(text) for text in ("\0", "a\0b", "stop\0")]
            outcome = case.settle(child)
            assert outcome.value == ["\0", "a\0b", "stop\0"]
            assert {receipt.status for receipt in receipts} == {"taken"}
            for value in ("\0", b"\0", {"\0": "a\0b"}):
                outcome = case.run(faults.give, (value,))
                assert (how(outcome), outcome.value) == (SUCCEEDED, value)
            outcome = case.run(faults.throw, (ValueError("a\0b"),))
            assert outcome.error.message == "a\0b"
            assert case.run(sx.Command(["cat"]), stdin="a\0b").stdout.head == b"a\0b"
            outcome = case.run(asking.denied, ("a\0b",))
            assert outcome.denials == ("a\0b",)
        case _:
            options = {"profile": profile, **REFUSED[what]}
            with pytest.raises(sx.ConfigError, match="x00"):
                case.executor.launch(**options)
            assert case.executor.statistics()["started"] == 0
