"""What the commands print, and their exit codes. Results go to standard output, words to standard error."""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING, Final

from sandbox_exec.cli.plain import plain
from sandbox_exec.errors import SandboxError

if TYPE_CHECKING:
    from sandbox_exec import Outcome, Output

FAILED: Final = 1
WALL: Final = 124
OUR_ERROR: Final = 125
BOUNDARY: Final = 126
SIGNAL: Final = 128
INTERRUPTED: Final = 130


def exit_code(outcome: Outcome, *, is_command: bool) -> int:
    """The exit code that tells how the child ended."""
    error = outcome.error
    if error is None:
        return 0
    if error.type_name:  # an exception: of the target, or of the attempt to become the command
        return OUR_ERROR if is_command else FAILED
    match error.classification:
        case "EXIT_CODE":
            return outcome.exit.code or FAILED
        case "TIMEOUT":
            return WALL
        case "LAUNCH_FAILED":
            return OUR_ERROR
        case "NOT_CONFINED":
            return BOUNDARY
        case _:
            if outcome.exit.signal is not None:
                return SIGNAL + outcome.exit.signal
            return (is_command and outcome.exit.code) or FAILED


def say(text: str) -> None:
    """One diagnostic."""
    write(2, f"sandboxed: {plain(text)}\n".encode())


def complain(name: str, outcome: Outcome, *, is_command: bool) -> None:
    """Why it did not succeed: the traceback of a target that raised, and what that does not say."""
    error = outcome.error
    if error is None or (error.classification == "EXIT_CODE" and not error.type_name):
        return  # the command has said what it has to say
    if is_command and error.type_name:
        say(f"cannot run {name}: {error.message}")
        return
    if error.traceback_text:
        write(2, plain(error.traceback_text).encode())
        if error.classification == error.type_name.rpartition(".")[2]:
            return
    ending = ", ".join(dict.fromkeys([outcome.state.value, error.classification]))  # CANCELLED once
    said = error.message.removeprefix(f"{error.classification} ")
    say(f"{name}: {ending}: {said}")


def raw(output: Output) -> bytes:
    """A stream as it was written, with a line in the place of what was not kept."""
    if not output.dropped_bytes:
        return output.head + output.tail
    return b"%b\n[... %d bytes left out ...]\n%b" % (output.head, output.dropped_bytes, output.tail)


def write(fd: int, data: bytes) -> None:
    """Writes all of it to a standard stream, whose reader may have left.

    Raises:
        SandboxError: standard output takes no more.
    """
    stream = sys.stdout if fd == 1 else sys.stderr
    if stream is None:  # it was closed when we started; the number may be another file's by now
        return
    left = memoryview(data)
    try:
        while left:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:  # whoever shares the terminal or pipe has made it so
                select.select([], [fd], [])
    except BrokenPipeError:
        return
    except OSError as error:
        if fd == 1:  # of standard error there is nobody to tell
            raise SandboxError(f"cannot write to standard output: {error.strerror}") from error
