"""Host tools: granted by what the host holds, run off the loop, never for ever."""

import sys
import threading
import time

import pytest

import sandbox_exec as sx
from children import asking, watch
from children.watch import wait_until


def echo(number=None, pause=0.0, many=None):
    time.sleep(pause)
    return {"number": number}


def registry_of(**tools):
    registry = sx.ToolsetRegistry()
    for name, tool in tools.items():
        registry.tool("tools", name=name)(tool)
    return registry


class Launch:
    """Launches children that hold the tool `echo` and those that are given, on one executor."""

    def __init__(self, profile):
        self.registry = registry_of(echo=echo)
        self.executor = sx.SandboxExecutor(profile, registry=self.registry)

    def __call__(self, target, *args, timeout_seconds=30.0, **tools):
        for name, tool in tools.items():
            self.registry.tool(f"{name}s", name=name, timeout_seconds=timeout_seconds)(tool)
        return self.again(target, *args, tools=tools)

    def again(self, target, *args, tools):
        return self.executor.launch(target, args, toolsets=["tools", *(f"{name}s" for name in tools)])


@pytest.fixture
def launch(profile):
    launch = Launch(profile)
    with launch.executor:
        yield launch


def test_a_granted_tool_answers_and_runs_on_no_thread_of_the_loops(launch):
    threads = []

    def where(a):
        threads.append(threading.current_thread().name)
        return {"a": a, "kept": (1, b"x", 2.5)}

    child = launch(asking.once, "where", {"a": [1, None]}, where=where)
    assert child.outcome(30).unwrap() == {"a": [1, None], "kept": (1, b"x", 2.5)}
    assert threads
    assert all(name.startswith("sandbox-exec tool") for name in threads)


def test_an_answer_larger_than_a_frame_arrives_whole(launch):
    child = launch(asking.once, "big", {}, big=lambda: "x" * 3_000_000)
    assert child.outcome(30).unwrap() == "x" * 3_000_000


@pytest.mark.parametrize("name", ["absent", "Echo", "echo ", "\u0435cho", ""])
def test_what_is_not_granted_by_this_very_name_is_denied_and_recorded(launch, name):
    outcome = launch(asking.denied, name).outcome(30)
    assert outcome.unwrap().startswith("denied: ")
    assert outcome.denials == (name,)


def test_a_tool_that_raises_fails_for_the_child_alone(launch):
    def broken():
        raise ValueError("no such note")

    assert launch(asking.failing, "broken", broken=broken).outcome(30).unwrap() == (
        "failed: ValueError: no such note"
    )
    assert launch(asking.in_turn, 50).outcome(30).unwrap() == list(range(50))


def test_a_tool_past_its_deadline_is_given_up_and_replaced(launch):
    release, asks = threading.Event(), launch.executor._opened().asks
    try:
        child = launch(asking.failing, "slow", slow=lambda: release.wait(60), timeout_seconds=0.3)
        assert child.outcome(30).unwrap() == "failed: the tool 'slow' did not answer within 0.3 s"
        assert asks._abandoned == 1
        assert launch(asking.in_turn, 20).outcome(30).unwrap() == list(range(20))
    finally:
        release.set()
    assert wait_until(lambda: asks._abandoned == 0)


def test_four_asks_at_once_and_the_fifth_is_busy(launch):
    assert launch(asking.from_threads, 4).outcome(30).unwrap() == ["0", "1", "2", "3"]
    got = launch(asking.from_threads, 6).outcome(30).unwrap()
    assert got.count("busy") == 2
    assert len(got) == 6


def test_one_slow_ask_delays_no_other_childs_cancel(launch):
    release = threading.Event()
    try:
        hanging = [launch(asking.failing, "slow", slow=lambda: release.wait(60))]
        hanging += [launch.again(asking.failing, "slow", tools=["slow"]) for _ in range(11)]
        other = launch.executor.launch(time.sleep, (600,))
        while other.state is not sx.SubagentState.RUNNING:
            time.sleep(0.01)
        other.cancel()
        assert other.outcome(10).state is sx.SubagentState.CANCELLED
        assert all(child.alive for child in hanging)
        hanging[0].cancel()
        assert hanging[0].outcome(30).state is sx.SubagentState.CANCELLED
    finally:
        release.set()


def test_steers_during_one_long_ask_wait_for_the_boundary_and_hurt_nobody(launch):
    child = launch(asking.long_one)
    next(event for event in child.events() if event.kind == "asking")
    receipts = [child.steer(f"hello {number}") for number in range(100)]
    taken = [receipt for receipt in receipts if receipt]
    assert child.outcome(30).unwrap() == [receipt.text for receipt in taken]
    assert {receipt.status for receipt in taken} == {"taken"}
    assert len(taken) == 64


def test_arguments_are_bounded_in_the_child_already(launch):
    assert launch(asking.too_many_values).outcome(30).unwrap() == "TooLarge"


def test_a_child_knows_its_toolsets_and_may_ask_for_nothing_else(profile):
    registry = registry_of(echo=echo)
    registry.tool("others", name="other")(echo)
    registry.bundle("desk", ["tools", "tools"])
    with sx.SandboxExecutor(profile, toolsets=["desk", "others"], registry=registry) as executor:
        assert executor.launch(asking.held).outcome(30).unwrap() == ("tools", "others")
        child = executor.launch(asking.denied, ("other",), toolsets=["desk"])
        assert child.outcome(30).unwrap() == "denied: the tool 'other' is not granted to this child"
        assert executor.launch(asking.held, toolsets=["desk"]).outcome(30).unwrap() == ("tools",)
        assert executor.launch(asking.held, toolsets=[]).outcome(30).unwrap() == ()
        assert executor.submit(asking.held).result(30) == ("tools", "others")
        with pytest.raises(sx.ToolsetError, match=r"toolsets web would broaden .*: tools, others"):
            executor.launch(asking.held, toolsets=["web", "desk"])
        assert executor.statistics()["started"] == 5


def test_a_running_child_gains_nothing_by_what_is_registered_later(launch):
    child = launch(asking.on_steer, "late")
    watch.wait_for_event(child, "asking")
    # Of a toolset that it holds, even.
    launch.registry.tool("tools", name="late")(echo)
    child.steer("go")
    assert child.outcome(30).unwrap() == "denied: the tool 'late' is not granted to this child"
    assert launch(asking.once, "late", {}).outcome(30).unwrap() == {"number": None}


def test_arguments_that_do_not_fit_are_denied_by_name_and_nothing_is_called(launch):
    called = []

    def add(text: str, tag: str = ""):
        called.append((text, tag))

    asked = [{"text": 1}, {}, {"text": "x", "tga": ""}, {"text": "x"}, {"text": "x", "tag": "y"}]
    outcome = launch(asking.each, "add", asked, add=add).outcome(30)
    start = "denied: the arguments of 'add' are not valid: "
    assert outcome.unwrap() == [
        f"{start}argument 'text': Expected `str`, got `int`",
        f"{start}argument 'text' is missing",
        f"{start}there is no argument 'tga'. Did you mean 'tag'?",
        None,
        None,
    ]
    assert called == [("x", ""), ("x", "y")]
    assert outcome.denials == ("add",) * 3


def test_a_denial_is_an_event(launch):
    child = launch(asking.denied, "absent")
    assert watch.wait_for_event(child, "denied").data == {"tool": "absent"}
    assert watch.event_kinds(child).count("denied") == 1


class Unsendable:
    def __reduce__(self):
        raise SystemExit("no")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda: [threading.Lock()], "what 'odd' returned cannot be sent: TypeError: "),
        (Unsendable, "what 'odd' returned cannot be sent: SystemExit: no"),
        (lambda: sys.modules["children.watch"], "the tool's answer cannot be had in a child: "),
    ],
)
def test_an_answer_that_cannot_be_sent_fails_for_the_child_alone(launch, result, words):
    assert launch(asking.failing, "odd", odd=result).outcome(30).unwrap().startswith(f"failed: {words}")
    assert launch(asking.in_turn, 9).outcome(30).unwrap() == list(range(9))


def test_a_tool_that_exits_costs_no_thread(launch):
    launch.executor._opened().asks._pool._size = 1
    for number in range(3):
        name = f"leave{number}"
        outcome = launch(asking.failing, name, **{name: lambda: sys.exit("bye")}).outcome(30)
        assert outcome.unwrap() == "failed: SystemExit: bye"
    assert launch(asking.in_turn, 9).outcome(30).unwrap() == list(range(9))


def test_a_call_that_is_given_up_before_it_began_never_happens(launch):
    launch.executor._opened().asks._pool._size = 1
    release, called = threading.Event(), []
    try:
        blocking = launch(asking.once, "block", {}, block=lambda: release.wait(60) and None)
        assert wait_until(lambda: launch.executor._ward.asks._pool._outstanding == 1)
        late = launch(asking.failing, "late", late=lambda: called.append(1), timeout_seconds=0.3)
        assert late.outcome(30).unwrap() == (
            "failed: the tool 'late' was not begun within 0.3 s: every thread for tools is busy"
        )
        assert launch.executor._ward.asks._abandoned == 0
    finally:
        release.set()
    blocking.outcome(30).unwrap()
    assert launch(asking.in_turn, 3).outcome(30).unwrap() == [0, 1, 2]
    assert called == []


def test_beyond_32_abandoned_calls_no_more_are_begun(launch):
    release, asks = threading.Event(), launch.executor._opened().asks
    try:
        launch(asking.each, "slow", [], slow=lambda: release.wait(60), timeout_seconds=0.1)
        children = [launch.again(asking.failing_often, "slow", 4, tools=["slow"]) for _ in range(8)]
        for child in children:
            assert child.outcome(30).unwrap() == ["failed: the tool 'slow' did not answer within 0.1 s"] * 4
        assert asks._abandoned == 32
        got = launch.again(asking.failing, "slow", tools=["slow"]).outcome(30).unwrap()
        assert got == "failed: 32 calls of host tools hang already: no more are begun"
    finally:
        release.set()
    assert wait_until(lambda: asks._abandoned == 0)
    assert launch(asking.in_turn, 3).outcome(30).unwrap() == [0, 1, 2]


def launching(executor, wait):
    """A tool that launches a child on behalf of the one that asks."""

    def launch_one(nested: bool = False):
        target, args = (asking.once, ("launch_one", {})) if nested else (watch.ok, ())
        try:
            child = executor[0].launch(target, args, toolsets=["tools"])
        except sx.LaunchError as error:
            return str(error)
        return child.outcome(30).unwrap() if wait else child.id

    return launch_one


def test_a_childs_own_launch_is_admitted_or_refused_and_never_waits(profile):
    box = []
    registry = registry_of(launch_one=launching(box, wait=True))
    with sx.SandboxExecutor(profile, max_children=2, toolsets=["tools"], registry=registry) as executor:
        box.append(executor)
        assert executor.launch(asking.once, ("launch_one", {})).outcome(30).unwrap() == 1
        # The grandchild asks as well: the third is one too many.
        got = executor.launch(asking.once, ("launch_one", {"nested": True})).outcome(30).unwrap()
        assert got.startswith("the executor is full (2 children live or queued), and a child's own launch")
        # Two that ask at once would wait for each other.
        two = [executor.launch(asking.on_steer, ("launch_one",)) for _ in range(2)]
        for child in two:
            watch.wait_for_event(child, "asking")
            child.steer("go")
        for child in two:
            assert child.outcome(30).unwrap() == 1 or "is full" in child.outcome().value
        assert any("is full" in str(child.outcome().value) for child in two)
        assert executor.statistics()["queued"] == 0


def test_a_launch_by_a_tool_whose_child_is_gone_waits_like_any_other(profile):
    box, begun, go, got = [], threading.Event(), threading.Event(), []

    def launch_late():
        begun.set()
        go.wait(30)
        got.append(box[0].launch(watch.ok))

    registry = registry_of(launch_late=launch_late)
    with sx.SandboxExecutor(profile, max_children=1, toolsets=["tools"], registry=registry) as executor:
        box.append(executor)
        child = executor.launch(asking.once, ("launch_late", {}))
        assert begun.wait(30)
        child.kill()
        child.outcome(30)
        blocking = executor.launch(time.sleep, (600,))
        go.set()
        assert wait_until(lambda: executor.statistics()["queued"] == 1)
        blocking.kill()
        assert wait_until(lambda: got)
        assert got[0].outcome(30).unwrap() == 1


def test_a_toolset_of_the_kernels_is_granted_without_a_wall_and_said_to_bound_nothing(profile):
    with sx.SandboxExecutor(profile, toolsets=["file", "terminal"]) as executor:
        outcome = executor.launch(asking.held, toolsets=["file"]).outcome(30)
        assert outcome.unwrap() == ("file",)
        assert [name for name in outcome.degraded if name != "pidns"] == ["toolset file"]
        with pytest.raises(sx.ToolsetError, match="web would broaden"):
            executor.launch(asking.held, toolsets=["web"])
