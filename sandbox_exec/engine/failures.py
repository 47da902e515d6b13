"""From a child's own word on its failure, and from its end, to the one word that classifies it."""

from __future__ import annotations

import errno
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandbox_exec.engine.outcome import ErrorInfo
from sandbox_exec.engine.states import SubagentState, Verdict

if TYPE_CHECKING:
    from sandbox_exec.confinement.profile import Limits
    from sandbox_exec.engine import messages
    from sandbox_exec.engine.output import Output
    from sandbox_exec.engine.reaper import Exit
    from sandbox_exec.engine.states import Ending

FAILED: Final = SubagentState.FAILED
# Words that are ours: an exception's class of such a name is shown with its module.
RESERVED: Final = frozenset(
    {
        "CANCELLED", "CPU_LIMIT", "EXIT_CODE", "FILE_LIMIT", "HOST_LOST", "LAUNCH_FAILED", "MEMORY_LIMIT",
        "NOT_CONFINED", "NO_RESULT", "PROCESS_LIMIT", "PROTOCOL_VIOLATION", "RESULT_NOT_SERIALIZABLE",
        "RESULT_TOO_LARGE", "SIGNAL", "STALLED", "STATUS_TAKEN", "TIMEOUT", "UNREAPED", "",
    }
)  # fmt: skip


def classified(
    failure: messages.Failure, traceback: bytes, limits: Limits, *, cancelled: bool
) -> tuple[Verdict, ErrorInfo]:
    """The verdict that a Failure amounts to, and what callers get to read."""
    state, cause = FAILED, "none"
    match failure.kind:
        case "cancelled":
            word = "CANCELLED" if cancelled else _class_name(failure)
            state = SubagentState.CANCELLED if cancelled else FAILED
        case "too_large":
            word = "RESULT_TOO_LARGE"
        case "not_serializable":
            word = "RESULT_NOT_SERIALIZABLE"
        case _:
            word, cause = _limit(failure, limits) or (_class_name(failure), "none")
    text = traceback.decode("utf-8", "replace")
    return Verdict(state, word, cause), ErrorInfo(word, failure.type_name, failure.message, text)


def _class_name(failure: messages.Failure) -> str:
    return failure.name if failure.name not in RESERVED else f"exception {failure.type_name}"


def _limit(failure: messages.Failure, limits: Limits) -> tuple[str, str] | None:
    """The limit of ours that the exception comes from: only if there is one, and the error is its own."""
    tasks = limits.processes is not None or limits.threads is not None
    if failure.type_name == "builtins.MemoryError" and limits.memory_bytes is not None:
        return "MEMORY_LIMIT", "limit:memory"
    if failure.errno == errno.ENOMEM and limits.memory_bytes is not None:
        return "MEMORY_LIMIT", "limit:memory"
    if failure.errno == errno.EMFILE and limits.open_files is not None:
        return "FILE_LIMIT", "limit:files"
    if failure.errno == errno.EFBIG and limits.file_bytes is not None:
        return "FILE_LIMIT", "limit:files"
    no_task = failure.errno == errno.EAGAIN or failure.message == "can't start new thread"
    if no_task and tasks:
        return "PROCESS_LIMIT", "limit:processes"
    return None


def explained(
    ending: Ending, said: ErrorInfo | None, exit_: Exit, limits: Limits, stderr: Output
) -> ErrorInfo:
    """What callers get to read on an end that is no success.

    Args:
        ending: how it ended.
        said: the child's own word on it.
        exit_: of its process.
        limits: that it was held to.
        stderr: what it printed.
    """
    if said is not None and said.classification == ending.classification:
        ours = ending.cause != "none" or ending.state is SubagentState.CANCELLED
        if said.message or not ours:
            return said
    else:
        said = ErrorInfo(ending.classification or "")
    words = ending.detail or in_words(ending, exit_, limits)
    if ending.classification == "LAUNCH_FAILED":
        words += last_line(stderr)
    return replace(said, message=words)


def in_words(ending: Ending, exit_: Exit, limits: Limits) -> str:
    """One sentence on an end that has no message of its own.

    A child may raise a class of any name, "TIMEOUT" too: no limit is taken for granted.
    """
    match ending.classification:
        case "TIMEOUT" if limits.wall_seconds is not None:
            return f"the wall limit of {limits.wall_seconds:g} s was reached"
        case "CPU_LIMIT" if limits.cpu_seconds is not None:
            return f"the cpu limit of {limits.cpu_seconds:g} s was reached"
        case "RESULT_TOO_LARGE" if limits.result_bytes is not None:
            return f"the result is larger than result_bytes={limits.result_bytes:,}"
        case "FILE_LIMIT" if limits.file_bytes is not None:
            return f"a file grew beyond file_bytes={limits.file_bytes:,}"
        case "MEMORY_LIMIT" if limits.memory_bytes is not None:
            return f"memory_bytes={limits.memory_bytes:,} was reached"
        case "SIGNAL":
            return f"the process was ended by {how(exit_)}"
        case "EXIT_CODE":
            return f"the command ended with {how(exit_)}"
        case "NO_RESULT":
            return f"the process ended ({how(exit_)}) without a result"
        case "CANCELLED":
            return "it was cancelled, and did not finish first"
        case other:
            return str(other)


def how(exit_: Exit) -> str:
    """An exit status in words."""
    if exit_.code is not None:
        return f"exit code {exit_.code}"
    if exit_.signal is None:
        return "a status that somebody else took"
    try:
        return signal.Signals(exit_.signal).name
    except ValueError:
        return f"signal {exit_.signal}"


def last_line(stderr: Output) -> str:
    """What the interpreter said when it could not start; mostly the limits were too tight for one."""
    lines = stderr.text.strip().splitlines()
    return f": {lines[-1][:300]}" if lines else ""
