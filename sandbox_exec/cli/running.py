"""Runs one child in the foreground: Ctrl-C cancels it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sandbox_exec.cli.progress import Progress
from sandbox_exec.cli.report import say, write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sandbox_exec import Child, Command, Outcome


def run(
    target: Callable[..., object] | Command,
    args: Sequence[object],
    *,
    name: str,
    profile: str | None,
    limits: Mapping[str, float | None],
    progress: bool,
) -> tuple[Outcome, bool]:
    """Launches the target and waits for its end.

    Args:
        target: as of `SandboxExecutor.launch`.
        args: its arguments.
        name: for people.
        profile: the profile's name; None for the executor's default.
        limits: fields of `Limits`.
        progress: whether to show what it is at.

    Returns:
        The outcome, and whether Ctrl-C was pressed meanwhile.

    Raises:
        SandboxError: the request is wrong; no process exists.
    """
    from sandbox_exec import Limits, SandboxExecutor  # `--help` needs no engine

    asked = Limits(**limits)  # type: ignore[arg-type]  # the names are the fields'
    with SandboxExecutor(max_children=1) as executor:
        child = executor.launch(target, args, profile=profile, limits=asked, name=name)
        shown = Progress(name, wanted=progress)
        try:
            return _wait(child, shown)
        finally:
            shown.close()


def _wait(child: Child, progress: Progress) -> tuple[Outcome, bool]:
    interrupts = answered = 0
    while True:
        try:
            # In here, for the next Ctrl-C may come while the last one is being answered.
            if interrupts == answered:
                pass
            elif interrupts == 1:
                child.cancel("interrupted from the keyboard")
                progress.close()
                if sys.stderr is not None and sys.stderr.isatty():
                    write(2, b"\n")  # behind the terminal's own "^C"
                say("cancelling; Ctrl-C once more kills it")
            else:
                child.kill()
            answered = interrupts
            # Not for ever: a signal that comes just before a thread goes to sleep does not wake it.
            return child.outcome(timeout=0.2), interrupts > 0
        except TimeoutError:
            progress.show(child)
        except KeyboardInterrupt:
            interrupts += 1
