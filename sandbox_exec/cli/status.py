"""`--status-fd`: one line of JSON that tells our exit codes from the command's."""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from sandbox_exec import Outcome

_OURS: Final = frozenset(
    {"LAUNCH_FAILED", "NOT_CONFINED", "CANCELLED", "PROTOCOL_VIOLATION", "HOST_LOST", "UNREAPED"}
)


class StatusLine:
    """The one line, written last of all.

    Attributes:
        fd: where to; None for nowhere.
        outcome: what there is to tell, once a child has ended.
        is_command: the child was to become a command.
    """

    def __init__(self) -> None:
        self.fd: int | None = None
        self.outcome: Outcome | None = None
        self.is_command = False

    def write(self, code: int) -> None:
        """Tells how `sandboxed` ends.

        Raises:
            OSError: it cannot be written.
        """
        if self.fd is None:
            return
        outcome = self.outcome
        error = None if outcome is None else outcome.error
        record = {
            "exit": code,
            "by": "sandboxed" if outcome is None or self._ended_by_us(outcome, code) else "command",
            "state": None if outcome is None else outcome.state.value,
            "classification": None if error is None else error.classification,
            "signal": None if outcome is None else outcome.exit.signal,
        }
        fd, self.fd = self.fd, None
        os.write(fd, f"{json.dumps(record)}\n".encode())
        os.close(fd)

    def _ended_by_us(self, outcome: Outcome, code: int) -> bool:
        error = outcome.error
        if error is None:
            return code != 0  # what it gave could not be written
        never_became_it = self.is_command and bool(error.type_name)
        limit = outcome.exit.cause not in {"none", "STATUS_TAKEN"}
        return never_became_it or limit or error.classification in _OURS


STATUS: Final = StatusLine()  # of this process: also an error of the command line is told there


def option(_context: click.Context, _option: click.Parameter, number: int | None) -> None:
    """Takes the descriptor; it is looked at before anything else of the command line.

    Raises:
        click.BadParameter: it is not open for writing.
    """
    if number is None:
        return
    try:
        access = fcntl.fcntl(number, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_PATH)
    except (OSError, OverflowError, ValueError) as error:
        raise click.BadParameter(f"descriptor {number} is not open") from error
    if access not in {os.O_WRONLY, os.O_RDWR}:
        raise click.BadParameter(f"descriptor {number} is not open for writing")
    STATUS.fd = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)  # 0 to 2 may be given away
