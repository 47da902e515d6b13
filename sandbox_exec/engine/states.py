"""What a child's life is made of: phases, events, effects, and which message may arrive when.

Data only; how one leads to the other is `transitions.step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final


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
    HOST = "host"  # it had no memory or descriptors for what this child needs


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
    """A limit, or a want of the host's own, that ends the tree at once."""

    cause: Cause
    why: str = ""


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
    """How a life ended: a row of the README's table of endings, without the values that go with it."""

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
