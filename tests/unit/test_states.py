"""The life of a child, held to its rules: a machine that plays the world, and the tables written out.

The child is hostile: it says what it likes. The oracle is one sentence: a verdict that was read decides; else
the first decisive reason, of which only a cancel yields, and only to a violation; else the status.
"""

import re
from contextlib import suppress
from dataclasses import astuple, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sandbox_exec import errors
from sandbox_exec.engine import states as s
from sandbox_exec.engine import transitions
from sandbox_exec.engine.states import Cause, Message, Phase, SubagentState, Timer

PENDING, STARTING, RUNNING, OK, FAILED, LOST, ASKED, CANCELLED, _ = SubagentState
LAUNCH_FAILED = (FAILED, "LAUNCH_FAILED", "none")
BY_REASON = {
    Cause.VIOLATION: (LOST, "PROTOCOL_VIOLATION", "protocol"), Cause.CANCEL: (CANCELLED, "CANCELLED", "none"),
    Cause.WALL: (FAILED, "TIMEOUT", "limit:wall"), Cause.CPU: (FAILED, "CPU_LIMIT", "limit:cpu"),
    Cause.MEMORY: (FAILED, "MEMORY_LIMIT", "limit:memory"), Cause.BOOT_TIMEOUT: LAUNCH_FAILED,
    Cause.BOOT_FAILED: LAUNCH_FAILED, Cause.NOT_CONFINED: (FAILED, "NOT_CONFINED", "none"),
    Cause.SPAWN_FAILED: LAUNCH_FAILED, Cause.RESULT_SIZE: (FAILED, "RESULT_TOO_LARGE", "none"),
}  # fmt: skip
LIMITS = tuple(s.LimitHit(cause) for cause in (Cause.WALL, Cause.CPU, Cause.MEMORY, Cause.RESULT_SIZE))
RETURNED, CAUGHT = s.Verdict(OK, None), s.Verdict(CANCELLED, "CANCELLED")
RAISED, NO_MEMORY = s.Verdict(FAILED, "ValueError"), s.Verdict(FAILED, "MEMORY_LIMIT", "limit:memory")
CANCEL, KILL, GARBAGE, CLOSED = s.CancelAsked(), s.KillAsked(), s.Violation("x" * 300), s.ChannelClosed()
BOOT_FIRES, GRACE_FIRES, LEAVE_FIRES, UNREAPED_FIRES = (s.TimerFired(timer) for timer in Timer)
KILLED, TAKEN, UNCONFINED = s.Gone(signal=9), s.Gone(), s.BootFailed(Cause.NOT_CONFINED, "NoNewPrivs: 0")
DEATHS = [KILLED, TAKEN, s.Gone(0), s.Gone(3), *(s.Gone(signal=n) for n in (11, 24, 25))]
SAYINGS = [  # what the child says, and what the host makes of it where it is permitted
    (Message.READY, s.Ready()), (Message.READY, UNCONFINED), (Message.EXECUTING, s.Executing()),
    (Message.BOOT_FAILED, s.BootFailed(Cause.BOOT_FAILED, "no /usr")), (Message.RESULT, RETURNED),
    (Message.FAILURE, RAISED), (Message.FAILURE, NO_MEMORY), (Message.FAILURE, CAUGHT),
]  # fmt: skip


class World(RuleBasedStateMachine):
    """Events as a real child, launcher, kernel and caller could bring them about, and what must hold."""

    broken = True

    @initialize(limits=st.tuples(st.booleans(), st.booleans()), stuck=st.booleans(), far=st.integers(0, 7))
    def begin(self, limits, stuck, far):
        self.life, self.stuck = s.Life(*limits), stuck
        self.admitted = self.spawning = self.process = self.ran = self.command = False
        self.poisoned = self.wished = self.doomed = self.broken = False
        self.slot = self.steering = self.listening = True
        self.armed = self.reason = self.verdict = self.published = None
        self.ever = set()  # armed once, perhaps replaced: it may be on its way all the same
        self.ladder, self.graces = [], 0
        for event in WORDS["command"][: (0, 1, 2, 3, 3, 3, 3, 4)[far]]:  # most begin where things happen
            self.feed(event)

    def feed(self, event):
        before, self.now, self.broken = self.life, event, True
        self.note(event)
        self.life, effects = transitions.step(before, event)
        for effect in effects:
            self.carry_out(effect)
        self.check(before)
        self.broken = False

    def note(self, event):
        """What the event changes in the world, before the module under test hears of it."""
        match event:
            case s.Admitted():
                self.admitted = True
            case s.Spawned():
                self.spawning, self.process = False, True
            case s.SpawnFailed():
                self.spawning = False
                self.decide(Cause.SPAWN_FAILED)
            case s.Executing():
                self.command = True
            case s.Verdict():
                assert self.verdict is None, "a second one may not be sent"
                self.verdict = event
            case s.BootFailed(cause):
                self.decide(cause)
            case s.LimitHit(cause) if self.ran and self.process:
                self.doomed |= self.verdict is None
                self.decide(cause)
            case s.Violation() if self.process:
                self.poisoned = self.doomed = True
                self.decide(Cause.VIOLATION)
            case s.ChannelClosed() if self.process:
                self.listening = False
            case s.CancelAsked() | s.KillAsked():
                self.doomed |= event == KILL
                self.decide(Cause.CANCEL)
                self.wished |= self.reason is Cause.CANCEL
            case s.TimerFired(timer):
                if timer is self.armed:
                    self.armed = None
                    self.graces += timer is Timer.GRACE
                if self.process and timer is Timer.LEAVE:
                    self.decide(Cause.CHANNEL_CLOSED)
                if self.process and timer is Timer.BOOT and not self.ran:
                    self.decide(Cause.BOOT_TIMEOUT)
            case s.Gone():
                self.process = self.listening = False

    def decide(self, reason):
        if self.published is None and self.verdict is None:
            lesser = self.reason in {Cause.CANCEL, Cause.CHANNEL_CLOSED}
            if self.reason is None or (lesser and reason is Cause.VIOLATION):
                self.reason = reason

    def carry_out(self, effect):
        match effect:
            case s.Spawn():
                assert {self.spawning, self.process} == {False}
                self.spawning = True
            case s.Run():
                assert (self.now, self.ran) == (s.Ready(), False), "sent twice, or to a child not Ready"
                assert self.reason is None, "a child that is to die saw the target"
                self.ran = True
            case s.CloseSteering():
                self.steering = False
            case s.AskCancel() | s.Terminate() | s.Kill():
                assert self.process, "there is nobody to tell"
                assert not self.steering, "a steer could still be accepted, and vanish"
                self.climb(effect)
            case s.Arm(timer):
                self.armed = timer
                self.ever.add(timer)
            case s.Publish(ending):
                assert self.published is None, "published twice"
                assert not self.steering
                assert not self.process or (self.now == UNREAPED_FIRES and s.Kill in self.ladder), "not gone"
                assert (ending.state, ending.classification, ending.cause) == self.truth()
                self.published = ending
            case s.Release():
                assert self.slot, "released twice"
                assert self.published, "released before it was published"
                assert {self.spawning, self.process} == {False}, "something of it is left"
                self.slot = False

    def climb(self, rung):
        assert type(rung) not in self.ladder, f"{rung} twice"
        self.ladder.append(type(rung))
        assert self.ladder == sorted(self.ladder, key=[s.AskCancel, s.Terminate, s.Kill].index), "downwards"
        if isinstance(rung, s.Terminate):
            assert s.AskCancel in self.ladder or self.command, "Python is asked first"
        if isinstance(rung, s.Kill):
            finished = Cause.FINISHED if self.verdict else None
            grounds = dict.fromkeys((CANCEL, GRACE_FIRES, s.Spawned()), Cause.CANCEL) | {
                KILL: finished or Cause.CANCEL, LEAVE_FIRES: finished or Cause.CHANNEL_CLOSED,
                GARBAGE: Cause.VIOLATION, BOOT_FIRES: Cause.BOOT_TIMEOUT,
            }  # fmt: skip
            assert rung.cause is self.life.cause is (getattr(self.now, "cause", None) or grounds[self.now])
            if rung.cause is Cause.CANCEL and self.ran:
                assert self.now == KILL or s.Terminate in self.ladder, "no rung is left out"

    def truth(self):
        where = "STATUS_TAKEN" if self.now == TAKEN else "none"
        code, signal = (self.now.code, self.now.signal) if isinstance(self.now, s.Gone) else (None, None)
        if self.now == UNREAPED_FIRES and self.verdict is None:
            return LOST, "UNREAPED", "none"
        if said := astuple(self.verdict) if self.verdict else BY_REASON.get(self.reason):
            return said[0], said[1], where if said[2] == "none" else said[2]
        if not self.ran:
            return *LAUNCH_FAILED[:2], where
        if signal == 24 and self.life.cpu_limited:
            return FAILED, "CPU_LIMIT", "limit:cpu"
        if signal == 25 and self.life.file_limited:
            return FAILED, "FILE_LIMIT", "limit:files"
        if signal is not None and (signal != 9 or self.reason is None):
            return LOST, "SIGNAL", where
        if self.command and code is not None:
            return (FAILED, "EXIT_CODE", where) if code else (OK, None, where)
        return LOST, "NO_RESULT", where

    def check(self, before):
        life, killed = self.life, s.Kill in self.ladder
        assert life.ending is self.published, "what was published changed"
        # None of these ever turns back, so neither does what the caller sees.
        seen = ASKED if self.wished else RUNNING if self.ran else STARTING if self.admitted else PENDING
        assert life.public is (self.published.state if self.published else seen)
        assert not (self.steering and self.wished)
        assert life.public.terminal == (self.published is not None)
        if life.cause is not before.cause:
            lesser = before.cause in {Cause.FINISHED, Cause.CHANNEL_CLOSED}
            outranked = life.cause is Cause.VIOLATION and (self.wished or lesser)
            assert before.cause is None or outranked, "the first decisive cause stays"
            assert killed or life.cause is Cause.SPAWN_FAILED
        if self.process and self.published is None:  # the first wait that applies, and its deadline
            closed = not self.listening and not self.command
            waits = ((killed or self.doomed, Timer.UNREAPED), (self.verdict, Timer.LEAVE))
            waits += ((self.wished, Timer.GRACE), (closed, Timer.LEAVE), (not self.ran, Timer.BOOT))
            due = next((timer for applies, timer in waits if applies), None)
            assert due in {None, self.armed}
            assert not self.steering or due in {None, Timer.BOOT}, "what is steered now is lost"
            assert killed or self.graces < 2, "the second GRACE ends in SIGKILL"

    @precondition(lambda self: self.spawning or self.life.phase is Phase.QUEUED)
    @rule(answer=st.sampled_from([s.Spawned(), s.Spawned(), s.SpawnFailed("no more pids")]))
    def goes_on(self, answer):
        self.feed(answer if self.spawning else s.Admitted())

    @precondition(lambda self: self.process and self.listening and not self.poisoned)
    @rule(word=st.sampled_from(SAYINGS), rude=st.sampled_from([False, False, True]))
    def says(self, word, rude):
        message, event = word
        if message in self.life.permitted or rude:
            self.feed(event if message in self.life.permitted else GARBAGE)

    @rule(event=st.sampled_from([CANCEL, CANCEL, CLOSED, KILL, GARBAGE] * 2 + [*LIMITS, *DEATHS]))
    def happens(self, event):
        if self.process or event not in DEATHS:
            self.feed(event)

    @rule(timer=st.sampled_from(Timer))
    def fires(self, timer):
        if timer in self.ever:
            self.feed(s.TimerFired(timer))

    def teardown(self):
        if self.broken:  # it failed already; hypothesis tears down all the same
            return
        self.feed(CANCEL)
        if self.spawning:
            self.feed(s.Spawned())
        for _ in range(3):  # the longest way from a cancel to the end: GRACE, GRACE, UNREAPED
            if self.published is None:
                self.feed(KILLED if s.Kill in self.ladder and not self.stuck else s.TimerFired(self.armed))
        assert self.published is not None, "this life does not end"
        if self.process:  # a task that the kernel could not end, until it could
            assert self.slot
            self.feed(KILLED)
        for late in (GARBAGE, KILL, CLOSED, *LIMITS, UNREAPED_FIRES):
            self.feed(late)
        assert {self.slot, self.life.unreaped} == {False}


TestWorld = pytest.mark.timeout(300)(World.TestCase)
TestWorld.settings = settings(max_examples=1000, stateful_step_count=10, deadline=None, database=None)

WORDS = {
    "admitted": [s.Admitted()], "spawned": [s.Spawned()], "ready": [s.Ready()], "executing": [s.Executing()],
    "boot": [s.Admitted(), s.Spawned()], "work": [s.Admitted(), s.Spawned(), s.Ready()],
    "command": [s.Admitted(), s.Spawned(), s.Ready(), s.Executing(), CLOSED], "closed": [CLOSED],
    "no_spawn": [s.SpawnFailed("EAGAIN")], "boot_failed": [s.BootFailed(Cause.BOOT_FAILED, "no /usr")],
    "not_confined": [UNCONFINED], "garbage": [GARBAGE], "more_garbage": [s.Violation("late\n" * 99)],
    "returned": [RETURNED], "raised": [RAISED], "memory_error": [NO_MEMORY], "caught": [CAUGHT],
    "cancel": [CANCEL], "kill": [KILL], "wall": [LIMITS[0]], "cpu": [LIMITS[1]], "memory": [LIMITS[2]],
    "size": [LIMITS[3]], "boot_time": [BOOT_FIRES], "grace": [GRACE_FIRES], "leave": [LEAVE_FIRES],
    "unreaped": [UNREAPED_FIRES], "exit0": [s.Gone(0)], "exit3": [s.Gone(3)], "killed": [KILLED],
    "segv": [s.Gone(signal=11)], "xcpu": [s.Gone(signal=24)], "xfsz": [s.Gone(signal=25)], "taken": [TAKEN],
}  # fmt: skip

# The table of endings; lives are separated by |. Not decided here: STALLED.
ENDINGS = {
    (OK, None, "none"): "work returned closed exit0 | work returned segv | work returned leave killed |"
    " work returned cancel kill wall garbage killed | work wall returned killed | work kill returned killed |"
    " work cancel grace returned exit0 | work returned leave unreaped | command exit0",
    (FAILED, "ValueError", "none"): "work raised exit0 | work executing raised exit3 |"
    " work cancel raised exit0",
    (FAILED, "EXIT_CODE", "none"): "command exit3", (FAILED, "RESULT_TOO_LARGE", "none"): "work size killed",
    (FAILED, "TIMEOUT", "limit:wall"): "work wall killed | work wall cancel killed | work wall kill killed |"
    " work wall garbage killed | command wall killed | work wall taken",
    (FAILED, "CPU_LIMIT", "limit:cpu"): "work cpu killed | work xcpu | command xcpu",
    (FAILED, "MEMORY_LIMIT", "limit:memory"): "work memory killed | work memory_error exit3",
    (FAILED, "FILE_LIMIT", "limit:files"): "work xfsz | command xfsz",
    (FAILED, "LAUNCH_FAILED", "none"): "admitted no_spawn | boot boot_time killed | boot boot_failed killed |"
    " boot closed segv | boot closed leave killed | boot xcpu | boot boot_time cancel killed | boot exit0",
    (FAILED, "NOT_CONFINED", "none"): "boot not_confined killed | boot not_confined kill killed",
    (LOST, "SIGNAL", "none"): "work closed segv | work killed | command killed | work closed leave segv |"
    " work xcpu | work xfsz | command xcpu | command xfsz",
    (LOST, "NO_RESULT", "none"): "work closed exit0 | work exit3 | work closed leave killed",
    (LOST, "PROTOCOL_VIOLATION", "protocol"): "work garbage killed | work garbage kill killed |"
    " boot garbage killed | work cancel garbage killed | work cancel wall garbage killed",
    (LOST, "UNREAPED", "none"): "work kill unreaped | work wall unreaped killed | boot cancel unreaped",
    (CANCELLED, "CANCELLED", "none"): "cancel | kill | admitted cancel no_spawn | boot kill exit0 |"
    " admitted kill spawned ready killed | boot cancel killed | work cancel grace grace killed |"
    " work kill segv | work cancel caught exit0 | work cancel wall killed | command cancel exit0 |"
    " command cancel grace killed | work closed cancel killed | work cancel executing grace grace exit0 |"
    " work cancel grace kill killed",
    (LOST, "NO_RESULT", "STATUS_TAKEN"): "work closed taken | command taken",
    (OK, None, "STATUS_TAKEN"): "work returned taken",
    (CANCELLED, "CANCELLED", "STATUS_TAKEN"): "work kill taken",
    (FAILED, "LAUNCH_FAILED", "STATUS_TAKEN"): "boot taken | boot boot_time taken",
    (FAILED, "NOT_CONFINED", "STATUS_TAKEN"): "boot not_confined taken",
}  # fmt: skip


def live(words, life):
    for event in (event for word in words.split() for event in WORDS[word]):
        life, _ = transitions.step(life, event)
    return life


@pytest.mark.parametrize(("told", "life"), [(t, life) for t in ENDINGS for life in ENDINGS[t].split(" |")])
def test_ending(told, life):
    limited = told[1] in {"CPU_LIMIT", "FILE_LIMIT"}
    ending = live(life, s.Life(cpu_limited=limited, file_limited=limited)).ending
    assert ending is not None
    assert (ending.state, ending.classification, ending.cause) == told


WHY = {
    "admitted no_spawn": "EAGAIN", "boot boot_failed killed": "no /usr", "boot segv": "before it was Ready",
    "work cancel garbage more_garbage killed": GARBAGE.why, "work closed leave exit0": "closed its channel",
    "boot boot_time killed": "did not reach Ready", "work kill unreaped": "kernel cannot end",
    "work kill garbage killed": GARBAGE.why, "boot cancel garbage killed": GARBAGE.why,
}  # fmt: skip


@pytest.mark.parametrize("life", WHY)
def test_ending_says_why(life):
    assert WHY[life] in live(life, s.Life()).ending.detail


@cache
def reachable():
    """Every life that any order of events can lead to, by phase; a * marks a command's."""
    found, todo = {s.Life(): s.Life()}, [s.Life()]
    while todo:
        assert len(found) < 3000, "about a thousand today"
        life = todo.pop()
        for event in EVENTS:
            with suppress(errors.InvalidTransition):
                after = transitions.step(life, event)[0]
                if (key := replace(after, story=())) not in found:
                    found[key] = after
                    todo.append(after)
    rows = {}
    for life in found.values():
        rows.setdefault(life.phase.name + "*" * life.command, []).append(life)
    return rows


EVENTS = sorted({event for events in WORDS.values() for event in events}, key=repr)
BOOT, TALK = "ready boot_failed", "event ask steer_taken chunk partial result failure executing"
MAY_SAY = {
    "QUEUED": "", "SPAWNING": "", "BOOTING": BOOT, "ABORTING": BOOT, "RUNNING": TALK, "EXECUTING*": "failure",
    "STOPPING": TALK, "STOPPING*": "failure", "FINISHED": "", "FINISHED*": "", "ENDED": "", "ENDED*": "",
}  # fmt: skip


@pytest.mark.parametrize("row", MAY_SAY)
def test_permission(row):
    assert reachable().keys() == MAY_SAY.keys()
    assert {life.permitted for life in reachable()[row]} == {frozenset(map(Message, MAY_SAY[row].split()))}
    assert not any(life.permitted for life in reachable()[row] if life.verdict), "it has said its last word"


LEGAL = {  # all other kinds: always
    s.Admitted: "QUEUED", s.SpawnFailed: "SPAWNING", s.Spawned: "SPAWNING", s.Ready: "ABORTING BOOTING",
    s.BootFailed: "ABORTING BOOTING", s.Executing: "RUNNING STOPPING",
    s.Gone: "ABORTING BOOTING EXECUTING FINISHED RUNNING STOPPING", s.Verdict: "EXECUTING RUNNING STOPPING",
}  # fmt: skip


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", get_args(s.Event))
def test_legal_or_told_why_not(kind, phase):
    lives = [life for lives in reachable().values() for life in lives if life.phase is phase]
    cases = list(product(lives, [event for event in EVENTS if type(event) is kind]))
    assert cases
    for life, event in cases:
        if kind not in LEGAL or phase.name in LEGAL[kind].split() or (kind is s.Gone and life.unreaped):
            effects = {type(effect) for effect in transitions.step(life, event)[1]}
            assert not life.cause or effects <= {s.CloseSteering, s.Publish, s.Release}, "after SIGKILL"
            continue
        with pytest.raises(errors.InvalidTransition) as caught:
            transitions.step(life, event)
        told = f"{event} cannot happen in {phase.name}, only in {LEGAL[kind].replace(' ', ' or ')}. "
        assert str(caught.value).startswith(told)
        assert all(line in str(caught.value) for line in life.story or ["(nothing yet)"])


def test_story():
    assert live("admitted wall", s.Life()).story == ("QUEUED: Admitted() -> SPAWNING",), "no change, no news"
    *closed, last = live("work " + "closed " * 1000 + "more_garbage", s.Life()).story
    assert closed == ["RUNNING: ChannelClosed()"] * (transitions.STORY_LINES - 1)
    assert last.startswith("RUNNING: Violation(why='late\\nlate")
    assert len(last) == 200


def test_cause_that_no_ending_shows():
    lives = (
        "admitted no_spawn",
        "boot closed leave",
        "work returned leave garbage",
        "work closed leave garbage",
    )
    causes = [live(words, s.Life()).cause for words in lives]
    assert causes == [Cause.SPAWN_FAILED, Cause.CHANNEL_CLOSED, Cause.VIOLATION, Cause.VIOLATION]


def test_imports_stay_light():
    text = "".join(Path(module.__file__).read_text("utf-8") for module in (s, transitions, errors))
    light = {
        "__future__",
        "builtins",
        "functools",
        "dataclasses",
        "enum",
        "typing",
        errors.__name__,
        s.__name__,
    }
    assert set(re.findall(r"(?m)^\s*(?:from|import) (\S+)", text)) <= light
