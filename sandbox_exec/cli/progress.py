"""What a long `call` shows while it runs: a live line on a terminal, else a line for what the child says."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from sandbox_exec.cli.plain import plain
from sandbox_exec.cli.report import say

if TYPE_CHECKING:
    from rich.status import Status

    from sandbox_exec import Child, Event

QUIET_SECONDS: Final = 1.0  # short work shows nothing
LINE_SECONDS: Final = 1.0  # a child may say more than anybody reads
MOST_CHARACTERS: Final = 200


class Progress:
    """Standard error gets the time and the child's last event, at most once a second.

    Args:
        name: of what runs.
        wanted: False shows nothing.
    """

    def __init__(self, name: str, *, wanted: bool) -> None:
        self._name, self._wanted = name, wanted and sys.stderr is not None
        self._began = self._told_at = time.monotonic()
        self._told: Event | None = None
        self._status: Status | None = None

    def show(self, child: Child) -> None:
        """Called again and again while it runs."""
        now = time.monotonic()
        if not self._wanted or now - self._began < QUIET_SECONDS:
            return
        event = child._log.last("child")  # noqa: SLF001 one product
        if sys.stderr.isatty():
            said = f", {_words(event)}" if event is not None else ""
            self._live(f"{self._name}: {now - self._began:.0f} s{said}")
        elif event is not None and event != self._told and now - self._told_at >= LINE_SECONDS:
            self._told, self._told_at = event, now
            say(f"{self._name}: {now - self._began:.0f} s, {_words(event)}")

    def _live(self, words: str) -> None:
        from rich.console import Console  # only on a terminal, and only for long work
        from rich.text import Text

        if self._status is None:
            self._status = Console(stderr=True).status(Text(words))
            self._status.start()
        else:
            self._status.update(Text(words))

    def close(self) -> None:
        """Takes the live line away; idempotent. Nothing is shown after this."""
        self._wanted = False
        if self._status is not None:
            self._status.stop()
            self._status = None


def _words(event: Event) -> str:
    data = " ".join(f"{name}={value!r}" for name, value in event.data.items())
    return plain(f"{event.kind} {data}".strip().replace("\n", " ")[:MOST_CHARACTERS])
