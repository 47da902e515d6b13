"""`sandboxed call module:function [JSON args...]`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import click

from sandbox_exec.cli import options, report

if TYPE_CHECKING:
    from collections.abc import Callable

_REFERENCE: Final = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")

HELP: Final = """Runs a callable in a child and prints its value as one line of JSON.

MODULE:FUNCTION is imported in the child alone: from the standard library, the installed packages, or the
current directory. Each ARGUMENT is JSON.

Standard output gets the value and nothing else. What JSON cannot express is printed as an object whose
only key starts with "$": {"$bytes": "aGk="}, {"$set": [1, 2]}, {"$float": "nan"}; tuples become arrays.
What the callable itself prints, and its traceback when it fails (exit 1), go to standard error once it
has ended.

\b
Examples:
  sandboxed call math:sqrt 2
  sandboxed call statistics:mean '[1, 2, 4]'
  sandboxed call --memory 256M --wall 10s report:build '"2026-01"' true
"""


@click.command(help=HELP, short_help="Runs a callable, prints its value as JSON.")
@options.shared
@click.argument("reference", metavar="MODULE:FUNCTION")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1, type=click.UNPROCESSED)
def call(
    reference: str, arguments: tuple[str, ...], *, profile: str | None, as_json: bool, **limits: float | None
) -> int:
    """See `HELP`."""
    target, args = _target(reference), [_argument(i, text) for i, text in enumerate(arguments, 1)]
    from sandbox_exec.cli.running import run  # noqa: PLC0415 `--help` needs no engine

    outcome, interrupted = run(target, args, name=reference, profile=profile, limits=limits)
    from sandbox_exec.cli import jsonform  # noqa: PLC0415 "

    if as_json:
        report.write(1, f"{jsonform.outcome_text(outcome)}\n".encode())
    else:
        for output in (outcome.stdout, outcome.stderr):
            report.write(2, report.plain(output.text).encode())
        if outcome.error is None:
            report.write(1, f"{jsonform.value_text(outcome.value)}\n".encode())
        report.complain(reference, outcome)
    return report.INTERRUPTED if interrupted else report.exit_code(outcome, is_command=False)


call.context_settings["allow_interspersed_args"] = False  # -1 is an argument, not an option


def _target(reference: str) -> Callable[..., object]:
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise click.UsageError(f"{reference!r} is no MODULE:FUNCTION, such as math:sqrt")
    return _deferred(found[1], found[2], _directories(found[1]))


def _directories(module: str) -> list[str]:
    """Where the child is to look beside its own path. Nothing of the module is executed here."""
    import os  # noqa: PLC0415
    import sys  # noqa: PLC0415
    from importlib.machinery import PathFinder  # noqa: PLC0415
    from importlib.util import find_spec  # noqa: PLC0415

    top = module.partition(".")[0]
