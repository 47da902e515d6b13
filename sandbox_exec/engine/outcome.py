"""How a child ended, in full: what callers get, immutable, exactly one per child."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sandbox_exec.engine.output import Output
from sandbox_exec.engine.states import SubagentState
from sandbox_exec.errors import ChildCancelled, ChildError, ChildFailed, ChildInterrupted, failed_as


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Why a child did not succeed. Text only: a child's exception is never rebuilt.

    Attributes:
        classification: the cause as one word, see the table of endings in the README.
        type_name: qualified name of the exception's class, "" where there was none.
        message: the exception's text, or ours; at most 4,000 characters.
        traceback_text: as the child printed it, "" where there was none.
    """

    classification: str
    type_name: str = ""
    message: str = ""
    traceback_text: str = ""


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """What the kernel said of the process.

    Attributes:
        code: exit code, None if a signal ended it.
        signal: number of that signal.
        cause: none | limit:wall | limit:cpu | limit:memory | limit:files | limit:processes | protocol |
            host | STATUS_TAKEN.
    """

    code: int | None = None
    signal: int | None = None
    cause: str = "none"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a child used. Final figures are the kernel's, of the whole tree that was waited for.

    Attributes:
        wall_seconds: from Run to the end, or to now.
        cpu_seconds: user and system time.
        peak_rss_bytes: the largest resident set of one process of the tree.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """One moment in a child's life.

    Attributes:
        source: "executor" or "child".
        kind: for the executor one of queued, spawned, ready, running, steered, denied, ending, ended.
        at: epoch seconds.
        data: what belongs to it.
        dropped: how many events before this one were lost to the bound.
    """

    source: str
    kind: str
    at: float
    data: dict[str, object]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended. `unwrap` gives the value or raises."""

    child_id: str
    state: SubagentState
    value: object = None
    error: ErrorInfo | None = None
    exit: ExitInfo = field(default_factory=ExitInfo)
    partial: object = None
    stdout: Output = field(default_factory=Output)
    stderr: Output = field(default_factory=Output)
    usage: Usage = field(default_factory=Usage)
    missed_steer: tuple[str, ...] = ()
    denials: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    started_at: float = 0.0
    completed_at: float = 0.0

    def unwrap(self) -> object:
        """The value.

        Raises:
            ChildFailed, ChildInterrupted, ChildCancelled: by state; see `exception`.
        """
        if self.error is None:
            return self.value
        raise self.exception()

    def exception(self) -> ChildError:
        """What `unwrap` raises for a child that did not succeed.

        A `ChildFailed` is also an instance of the built-in exception class that the child raised, if it
        was one; no other class is rebuilt.
        """
        error = self.error or ErrorInfo("UNKNOWN")
        said = f": {error.message}" if error.message else ""
        how = f" (signal {self.exit.signal})" if self.exit.signal else ""
        message = f"child {self.child_id} {self.state}, {error.classification}{how}{said}"
        cls = _BY_STATE[self.state]
        raised = failed_as(error.type_name, message) if cls is ChildFailed else cls(message)
        if error.traceback_text:
            raised.__cause__ = _RemoteTraceback(error.traceback_text)
        return raised


class _RemoteTraceback(Exception):
    """The child's traceback text, shown as the cause, as concurrent.futures does."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


_BY_STATE: Final[dict[SubagentState, type[ChildError]]] = {
    SubagentState.FAILED: ChildFailed,
    SubagentState.INTERRUPTED: ChildInterrupted,
    SubagentState.CANCELLED: ChildCancelled,
}
