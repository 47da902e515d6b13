"""The life of one child as a pure function: ``step(life, event) -> (life, effects)``.

No clock, no pid, no socket. `warden.Warden` feeds events in and carries effects out. The phases, and
what the host calls them in public::

    QUEUED ──Admitted──> SPAWNING ──Spawned──> BOOTING ──Ready──> RUNNING ──Executing──> EXECUTING
    (PENDING)            (STARTING)            (STARTING)         (RUNNING)              (RUNNING)
                              │ cancel, limit,      │                │ cancel                │
                              │ violation ...       │                v                       v
                              └────────────> ABORTING            STOPPING (CANCEL_REQUESTED when asked)
                                                │                    │ Verdict
                                                │                    v
                                                │                 FINISHED
                                                └──── Gone ──────────┴──────────────> ENDED

Rules that the tests hold it to: exactly one `Publish`; nothing changes what was published; a verdict
that was read decides, whatever the process does afterwards; every `Kill` names its cause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from sandbox_exec.engine.states import (
    Admitted,
    Arm,
    AskCancel,
    BootFailed,
    CancelAsked,
    Cause,
    ChannelClosed,
    CloseSteering,
    Effect,
    Ending,
    Event,
    Executing,
    Gone,
    Kill,
    KillAsked,
    Life,
    LimitHit,
    Phase,
    Publish,
    Ready,
    Release,
    Run,
    Spawn,
    Spawned,
    SpawnFailed,
    SubagentState,
    Terminate,
    Timer,
    TimerFired,
    Verdict,
    Violation,
)
from sandbox_exec.errors import InvalidTransition

STORY_LINES: Final = 24

Step = tuple[Life, tuple[Effect, ...]]

_ALIVE = frozenset(
    {Phase.BOOTING, Phase.RUNNING, Phase.EXECUTING, Phase.STOPPING, Phase.FINISHED, Phase.ABORTING}
)
_WORKING = frozenset({Phase.RUNNING, Phase.EXECUTING, Phase.STOPPING})


def step(life: Life, event: Event) -> Step:
    """One event in the life of a child.

    Raises:
        InvalidTransition: the event cannot happen in this phase.
    """
    after, effects = _step(life, event)
    if after is not life:
        line = f"{life.phase.name}: {event}"
        if after.phase is not life.phase:
            line += f" -> {after.phase.name}"
        after = replace(after, story=(*after.story[-STORY_LINES + 1 :], line[:200]))
    return after, effects


def _step(life: Life, event: Event) -> Step:  # noqa: PLR0911 one line per event is the readable form
    match event:
        case Admitted():
            _require(life, event, Phase.QUEUED)
            return replace(life, phase=Phase.SPAWNING), (Spawn(),)
        case SpawnFailed(why):
            return _spawn_failed(life, event, why)
        case Spawned():
            return _spawned(life, event)
        case Ready():
            return _ready(life, event)
        case BootFailed(cause, why):
            _require(life, event, Phase.BOOTING, Phase.ABORTING)
            return _kill(life, cause, why)
        case Executing():
            _require(life, event, Phase.RUNNING, Phase.STOPPING)
            return _executing(life)
        case Verdict():
            return _verdict(life, event)
        case Violation(why):
            return _violation(life, why)
        case ChannelClosed():
            return _channel_closed(life)
        case LimitHit(cause, why):
            return _kill(life, cause, why) if life.phase in _WORKING else (life, ())
        case CancelAsked():
            return _cancel(life)
        case KillAsked():
            return _kill_asked(life)
        case TimerFired(timer):
            return _timer(life, timer)
        case Gone(code, signal):
            return _gone(life, event, code, signal)
        case _:
            assert_never(event)


def _require(life: Life, event: Event, *phases: Phase) -> None:
    if life.phase not in phases:
        story = "\n  ".join(life.story) or "(nothing yet)"
        expected = " or ".join(sorted(p.name for p in phases))
        msg = f"{event} cannot happen in {life.phase.name}, only in {expected}. The child's story:\n  {story}"
        raise InvalidTransition(msg)


def _spawn_failed(life: Life, event: Event, why: str) -> Step:
    _require(life, event, Phase.SPAWNING)
    if life.cancel_asked:
        return _publish(life, Ending(SubagentState.CANCELLED, "CANCELLED"))
    return _publish(
        replace(life, cause=Cause.SPAWN_FAILED, detail=why),
        Ending(SubagentState.FAILED, "LAUNCH_FAILED", detail=why),
    )


def _spawned(life: Life, event: Event) -> Step:
    _require(life, event, Phase.SPAWNING)
    booting = replace(life, phase=Phase.BOOTING)
    if life.cancel_asked:
        return _kill(booting, Cause.CANCEL, "")
    return booting, (Arm(Timer.BOOT),)


def _ready(life: Life, event: Event) -> Step:
    _require(life, event, Phase.BOOTING, Phase.ABORTING)
    if life.phase is Phase.ABORTING:  # SIGKILL and Ready crossed
        return life, ()
    return replace(life, phase=Phase.RUNNING, ran=True), (Run(),)


def _executing(life: Life) -> Step:
    if life.phase is Phase.RUNNING:
        return replace(life, phase=Phase.EXECUTING, command=True), (CloseSteering(),)
    command = replace(life, command=True)
    if life.rung == 1 and life.cause is None:  # it was asked in words that a command does not know
        return replace(command, rung=2), (CloseSteering(), Terminate(), Arm(Timer.GRACE))
    return command, (CloseSteering(),)


def _verdict(life: Life, verdict: Verdict) -> Step:
    _require(life, verdict, *_WORKING)
    finished = replace(life, phase=Phase.FINISHED, verdict=verdict)
    if life.cause is not None:  # SIGKILL crossed it: UNREAPED is armed, and must stay so
        return finished, (CloseSteering(),)
    return finished, (CloseSteering(), Arm(Timer.LEAVE))


def _cancel(life: Life) -> Step:
    asked = replace(life, cancel_asked=True)
    match life.phase:
        case Phase.QUEUED:
            return _publish(asked, Ending(SubagentState.CANCELLED, "CANCELLED"))
        case Phase.SPAWNING:
            return (asked, (CloseSteering(),)) if not life.cancel_asked else (life, ())
        case Phase.BOOTING:  # it has seen nothing of the user's: there is nothing to be polite about
            return _kill(asked, Cause.CANCEL, "")
        case Phase.RUNNING:
            return replace(asked, phase=Phase.STOPPING, rung=1), (
                CloseSteering(),
                AskCancel(),
                Arm(Timer.GRACE),
            )
        case Phase.EXECUTING:  # a command does not know our Cancel: begin with the second rung
            return replace(asked, phase=Phase.STOPPING, rung=2), (Terminate(), Arm(Timer.GRACE))
        case Phase.ABORTING | Phase.STOPPING | Phase.FINISHED | Phase.ENDED:
            return life, ()
        case _:
            assert_never(life.phase)


def _kill_asked(life: Life) -> Step:
    match life.phase:
        case Phase.QUEUED | Phase.SPAWNING | Phase.BOOTING:
            return _cancel(life)
        case Phase.STOPPING if life.cause is not None:  # decided already, perhaps for another reason
            return life, ()
        case Phase.RUNNING | Phase.EXECUTING | Phase.STOPPING:
            return _kill(replace(life, cancel_asked=True), Cause.CANCEL, "")
        case Phase.FINISHED:
            return _kill(life, Cause.FINISHED, "")
        case Phase.ABORTING | Phase.ENDED:
            return life, ()
        case _:
            assert_never(life.phase)


def _violation(life: Life, why: str) -> Step:
    if life.phase not in _ALIVE:
        return life, ()
    lesser = life.cancel_asked or life.cause in {Cause.FINISHED, Cause.CHANNEL_CLOSED}
    if lesser and life.cause not in {None, Cause.VIOLATION}:  # killed already, but for a lesser reason
        return replace(life, cause=Cause.VIOLATION, detail=why), ()
    return _kill(life, Cause.VIOLATION, why)


def _channel_closed(life: Life) -> Step:
    # EOF comes with every death, a moment before the pidfd: give the death time to arrive, so that
    # its true status is read, and only then end a child that lives on without its channel.
    if life.phase in {Phase.BOOTING, Phase.RUNNING} and not life.command:
        return replace(life), (CloseSteering(), Arm(Timer.LEAVE))
    return life, ()


def _timer(life: Life, timer: Timer) -> Step:
    match timer:
        case Timer.BOOT if life.phase is Phase.BOOTING:
            return _kill(life, Cause.BOOT_TIMEOUT, "the worker did not reach Ready in time")
        case Timer.GRACE if life.phase is Phase.STOPPING and life.cause is None:
            if life.rung == 1:
                return replace(life, rung=2), (Terminate(), Arm(Timer.GRACE))
            return _kill(life, Cause.CANCEL, "")
        case Timer.LEAVE if life.phase is Phase.FINISHED:
            return _kill(life, Cause.FINISHED, "")
        case Timer.LEAVE if life.phase in {Phase.BOOTING, Phase.RUNNING}:
            return _kill(life, Cause.CHANNEL_CLOSED, "it closed its channel and went on")
        case Timer.UNREAPED if life.phase in _ALIVE:
            return _unreaped(life)
        case _:  # a deadline that something else overtook
            return life, ()


def _kill(life: Life, cause: Cause, detail: str) -> Step:
    if life.cause is not None:  # SIGKILL is on its way
        return life, ()
    phase = life.phase
    if phase is Phase.BOOTING:
        phase = Phase.ABORTING
    elif phase in {Phase.RUNNING, Phase.EXECUTING}:
        phase = Phase.STOPPING
    killed = replace(life, phase=phase, cause=cause, detail=detail)
    return killed, (CloseSteering(), Kill(cause), Arm(Timer.UNREAPED))


def _gone(life: Life, event: Event, code: int | None, signal: int | None) -> Step:
    if life.phase is Phase.ENDED and life.unreaped:
        return replace(life, unreaped=False), (Release(),)
    _require(life, event, *_ALIVE)
    return _publish(life, conclude(life, code, signal))


def _unreaped(life: Life) -> Step:
    said = life.verdict
    why = "the process is still there 30 s after SIGKILL: a task that the kernel cannot end"
    if said is not None:  # not `conclude`: nobody took a status, there is none yet
        ending = Ending(said.state, said.classification, said.cause)
    else:
        ending = Ending(SubagentState.INTERRUPTED, "UNREAPED", detail=why)
    after, effects = _publish(replace(life, unreaped=True), ending)
    return after, tuple(
        e for e in effects if not isinstance(e, Release)
    )  # the slot stays taken until it is gone


def _publish(life: Life, ending: Ending) -> Step:
    ended = replace(life, phase=Phase.ENDED, ending=ending)
    return ended, (CloseSteering(), Publish(ending), Release())


_SIGKILL, _SIGXCPU, _SIGXFSZ = 9, 24, 25
_BY_CAUSE: Final = {
    Cause.WALL: ("TIMEOUT", "limit:wall"),
    Cause.CPU: ("CPU_LIMIT", "limit:cpu"),
    Cause.MEMORY: ("MEMORY_LIMIT", "limit:memory"),
    Cause.RESULT_SIZE: ("RESULT_TOO_LARGE", "none"),
    Cause.BOOT_TIMEOUT: ("LAUNCH_FAILED", "none"),
    Cause.BOOT_FAILED: ("LAUNCH_FAILED", "none"),
    Cause.NOT_CONFINED: ("NOT_CONFINED", "none"),
}


def conclude(life: Life, code: int | None, signal: int | None) -> Ending:
    """What the whole life amounts to, once the process is gone with this status.

    The order is the contract (the README's table of endings): what the child said in full, then a broken
    protocol, then what was asked, then why we killed it, then what the kernel says.
    """
    taken = code is None and signal is None
    where = "STATUS_TAKEN" if taken else "none"
    if life.verdict is not None:
        cause = life.verdict.cause if life.verdict.cause != "none" else where
        return Ending(life.verdict.state, life.verdict.classification, cause)
    if life.cause is Cause.VIOLATION:
        return Ending(SubagentState.INTERRUPTED, "PROTOCOL_VIOLATION", "protocol", life.detail)
    if life.cancel_asked:
        return Ending(SubagentState.CANCELLED, "CANCELLED", where)
    if life.cause is Cause.HOST:
        return Ending(SubagentState.INTERRUPTED, "HOST_LOST", "host", life.detail)
    if life.cause in _BY_CAUSE:
        classification, cause = _BY_CAUSE[life.cause]
        return Ending(SubagentState.FAILED, classification, cause if cause != "none" else where, life.detail)
    if not life.ran:
        return Ending(SubagentState.FAILED, "LAUNCH_FAILED", where, "the worker ended before it was Ready")
    return _by_status(life, code, signal, where)


def _by_status(life: Life, code: int | None, signal: int | None, cause: str) -> Ending:
    if signal == _SIGXCPU and life.cpu_limited:
        return Ending(SubagentState.FAILED, "CPU_LIMIT", "limit:cpu")
    if signal == _SIGXFSZ and life.file_limited:
        return Ending(SubagentState.FAILED, "FILE_LIMIT", "limit:files")
    if signal is not None:
        # SIGKILL that is ours, for a closed channel, says nothing about how the child would have ended.
        ours = life.cause is not None and signal == _SIGKILL
        return Ending(SubagentState.INTERRUPTED, "NO_RESULT" if ours else "SIGNAL", cause, life.detail)
    if life.command and code == 0:
        return Ending(SubagentState.SUCCEEDED, None, cause)
    if life.command and code is not None:
        return Ending(SubagentState.FAILED, "EXIT_CODE", cause)
    return Ending(SubagentState.INTERRUPTED, "NO_RESULT", cause, life.detail)
