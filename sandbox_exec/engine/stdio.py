"""A command's standard descriptors, when they are its caller's own instead of an input and our captures."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stdio:
    """What a command gets as 0, 1 and 2.

    The captures stay for what its worker says before it becomes the command: why it could not start.

    Attributes:
        fds: three descriptors, the engine's from the launch on: it closes them once the command has them,
            so that nobody but the command holds a pipe open.
        terminal: which of them is to be the command's controlling terminal; no other session may have it.
    """

    fds: tuple[int, int, int]
    terminal: int | None = None

    def close(self) -> None:
        """Closes them, in place of handing them on."""
        for fd in self.fds:
            os.close(fd)
