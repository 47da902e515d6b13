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

from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Final, assert_never

from sandbox_exec.errors import InvalidTransition

STORY_LINES: Final = 24


class SubagentState(StrEnum):
    """How a child's life looks from outside. The value is the name."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    INTERRUPTED = "INTERRUPTED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"

    @property
    def terminal(self) -> bool:
        """True for the four states in which a life ends."""
        return self in _TERMINAL


_TERMINAL = frozenset(
    {SubagentState.SUCCEEDED, SubagentState.FAILED, SubagentState.INTERRUPTED, SubagentState.CANCELLED}
)


class Phase(Enum):
    """Where a life stands, for the engine."""

    QUEUED = auto()  # waits for a slot
    SPAWNING = auto()  # asked of the launcher, no process known yet
    BOOTING = auto()  # a process, not yet Ready: it has seen nothing of the user's
    ABORTING = auto()  # to be killed before it saw the target
    RUNNING = auto()  # Run was sent
    EXECUTING = auto()  # a command took the worker's place: nothing can arrive but its death
    STOPPING = auto()  # the ladder is being climbed, or SIGKILL was sent
    FINISHED = auto()  # its one Result or Failure was read
    ENDED = auto()  # published


class Cause(StrEnum):
    """Why we end a child. The first decisive one stays; only a violation outranks a cancel."""

    CANCEL = "cancel"
    FINISHED = "finished"  # it gave its verdict and did not leave by itself
    WALL = "wall limit"
    CPU = "cpu limit"
    MEMORY = "memory limit"
    RESULT_SIZE = "result size"
    VIOLATION = "protocol violation"
    CHANNEL_CLOSED = "channel closed"
    BOOT_TIMEOUT = "boot timeout"
    BOOT_FAILED = "boot failed"
    NOT_CONFINED = "not confined"
    SPAWN_FAILED = "spawn failed"


class Timer(Enum):
    """Deadlines that the host keeps for a child."""

    BOOT = auto()  # spawned -> Ready
    GRACE = auto()  # one rung of the ladder
    LEAVE = auto()  # verdict read, or channel closed -> process gone
    UNREAPED = auto()  # SIGKILL -> process gone


class Message(StrEnum):
    """What a child can say; the tag on the wire."""

    READY = "ready"
    BOOT_FAILED = "boot_failed"
    EVENT = "event"
    ASK = "ask"
    STEER_TAKEN = "steer_taken"
    CHUNK = "chunk"
    PARTIAL = "partial"
    EXECUTING = "executing"
    RESULT = "result"
    FAILURE = "failure"


_BOOT = frozenset({Message.READY, Message.BOOT_FAILED})
_TALK = frozenset(
    {
        Message.EVENT,
        Message.ASK,
        Message.STEER_TAKEN,
        Message.CHUNK,
        Message.PARTIAL,
        Message.RESULT,
        Message.FAILURE,
    }
)
_NOTHING: frozenset[Message] = frozenset()

# The one table of what may arrive when (OpenSSH's monitor has one per phase). Unlisted = poisoned.
PERMITTED: Final[dict[Phase, frozenset[Message]]] = {
    Phase.QUEUED: _NOTHING,
    Phase.SPAWNING: _NOTHING,  # its channel is read only once the process is known
    Phase.BOOTING: _BOOT,
    Phase.ABORTING: _BOOT,
    Phase.RUNNING: _TALK | {Message.EXECUTING},
    Phase.EXECUTING: frozenset({Message.FAILURE}),  # only if exec itself failed
    Phase.STOPPING: _TALK | {Message.EXECUTING},
    Phase.FINISHED: _NOTHING,
    Phase.ENDED: _NOTHING,
}


# Events ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """A slot is free."""


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """No process came to be."""

    why: str


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process exists."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker is confined, and verified from outside."""


@dataclass(frozen=True, slots=True)
class BootFailed:
    """The worker could not reach Ready, or did not pass the check from outside."""

    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class Executing:
    """A command is about to take the worker's place."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The child's own word on its end, read and decoded in full."""

    state: SubagentState
    classification: str | None
    cause: str = "none"


@dataclass(frozen=True, slots=True)
class Violation:
    """The child broke the protocol; its channel is poisoned."""

    why: str


@dataclass(frozen=True, slots=True)
class ChannelClosed:
    """The child's end of the channel is closed: it is dying, was replaced, or went its own way."""


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit that ends the tree at once."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """The caller's wish: ask, then climb the ladder."""


@dataclass(frozen=True, slots=True)
class KillAsked:
    """The caller's wish: SIGKILL now."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A deadline passed."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Gone:
    """The tree is proven gone and the channel read to its end.

    Attributes:
        code: exit code, when it exited.
        signal: signal number, when a signal ended it. Both None: someone else took the status.
    """

    code: int | None = None
    signal: int | None = None


Event = (
    Admitted
    | SpawnFailed
    | Spawned
    | Ready
    | BootFailed
    | Executing
    | Verdict
    | Violation
    | ChannelClosed
    | LimitHit
    | CancelAsked
    | KillAsked
    | TimerFired
    | Gone
)


# Effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Ask the launcher for a process."""


@dataclass(frozen=True, slots=True)
class Run:
    """Send the target."""


@dataclass(frozen=True, slots=True)
class AskCancel:
    """Send Cancel and SIGURG."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM."""


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL the whole tree."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Arm:
    """Start a deadline; a child has one at a time, a later one replaces it."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class CloseSteering:
    """No steer is accepted from here on."""


@dataclass(frozen=True, slots=True)
class Publish:
    """The outcome, exactly once."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class Release:
    """Give the slot back: nothing of this child is left."""


Effect = Spawn | Run | AskCancel | Terminate | Kill | Arm | CloseSteering | Publish | Release


# State ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """How a life ended: what API.md's table of endings says, without the values that go with it."""

    state: SubagentState
    classification: str | None
    cause: str = "none"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Life:
    """Everything that decides how a child's life goes on. Start with ``Life()``.

    ``cpu_limited`` and ``file_limited`` say whether SIGXCPU and SIGXFSZ may be a limit of ours.
    """

    cpu_limited: bool = False
    file_limited: bool = False
    phase: Phase = Phase.QUEUED
    cause: Cause | None = None  # why SIGKILL was sent
    detail: str = ""
    verdict: Verdict | None = None
    cancel_asked: bool = False
    command: bool = False  # a command took the worker's place
    ran: bool = False  # Run was sent
    rung: int = 0
    unreaped: bool = False
    ending: Ending | None = None
    story: tuple[str, ...] = ()

    @property
    def public(self) -> SubagentState:
        """The state that callers see."""
        match self.phase:
            case _ if self.ending is not None:
                return self.ending.state
            case _ if self.cancel_asked:
                return SubagentState.CANCEL_REQUESTED
            case Phase.QUEUED:
                return SubagentState.PENDING
            case Phase.SPAWNING | Phase.BOOTING | Phase.ABORTING:
                return SubagentState.STARTING
            case _:
                return SubagentState.RUNNING

    @property
    def permitted(self) -> frozenset[Message]:
        """The messages that may arrive now."""
        allowed = PERMITTED[self.phase]
        return allowed & PERMITTED[Phase.EXECUTING] if self.command else allowed


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
            phase = Phase.EXECUTING if life.phase is Phase.RUNNING else life.phase
            return replace(life, phase=phase, command=True), (CloseSteering(),)
        case Verdict():
            return _verdict(life, event)
        case Violation(why):
            return _violation(life, why)
        case ChannelClosed():
            return _channel_closed(life)
        case LimitHit(cause):
            return _kill(life, cause, "") if life.phase in _WORKING else (life, ())
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
    lesser = life.cancel_asked or life.cause is Cause.FINISHED
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

    The order is the contract (API.md's table): what the child said in full, then a broken protocol,
    then what was asked, then why we killed it, then what the kernel says.
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
