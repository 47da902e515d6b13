"""`sandboxed call module:function [JSON args...]`."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import click

from sandbox_exec.cli import options, report
from sandbox_exec.cli.plain import plain
from sandbox_exec.cli.status import STATUS
from sandbox_exec.errors import ConfigError

_REFERENCE: Final = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")

HELP: Final = """Runs a callable in a child and prints its value as one line of JSON.

MODULE:FUNCTION is imported in the child alone: from the standard library, the installed packages, or the
current directory. Each ARGUMENT is JSON.

Standard output gets the value and nothing else. What JSON cannot express is printed as an object whose
only key starts with "$": {"$bytes": "aGk="}, {"$set": [1, 2]}, {"$float": "nan"}; tuples become arrays.
What the callable itself prints, and its traceback when it fails (exit 1), go to standard error once it
has ended. While long work runs, standard error shows the time and the last event that the callable emitted.

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
    args = (*_resolved(reference), *(_argument(i, text) for i, text in enumerate(arguments, 1)))
    from sandbox_exec.cli.running import run  # `--help` needs no engine

    outcome, interrupted = run(
        call_target, args, name=reference, profile=profile, limits=limits, progress=not as_json
    )
    STATUS.outcome = outcome
    from sandbox_exec.cli import jsonform

    if as_json:
        report.write(1, f"{jsonform.outcome_text(outcome)}\n".encode())
    else:
        for output in (outcome.stdout, outcome.stderr):
            report.write(2, plain(output.text).encode())
        if outcome.error is None:
            report.write(1, f"{jsonform.value_text(outcome.value)}\n".encode())
        report.complain(reference, outcome, is_command=False)
    return report.INTERRUPTED if interrupted else report.exit_code(outcome, is_command=False)


call.context_settings["allow_interspersed_args"] = False  # -1 is an argument, not an option


def call_target(module: str, name: str, directories: list[str], *args: object) -> object:
    """Imports and calls the target, in the child.

    It names nothing but modules of the standard library, so that it travels as its code (`engine.payload`)
    and the child need not import this module.
    """
    sys.path += [directory for directory in directories if directory not in sys.path]
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found(*args)


def _resolved(reference: str) -> tuple[str, str, list[str]]:
    """Module, name, and where the child is to look. The module is not imported: its code is the child's."""
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise ConfigError(f"{reference!r} is no MODULE:FUNCTION, such as math:sqrt")
    return found[1], found[2], _directories(found[1])


def _directories(module: str) -> list[str]:
    top = module.partition(".")[0]
    here = _current_directory()
    spec = importlib.machinery.PathFinder.find_spec(top, [*sys.path, *here])
    if spec is None and top != "__main__":  # built in or frozen
        spec = importlib.util.find_spec(top)
    if spec is None:
        where = ", ".join(["the standard library", "the installed packages", *here])
        raise ConfigError(f"cannot call {module}: no module {top!r} in {where}")
    places = list(spec.submodule_search_locations or [])  # a namespace package has several, and no file
    if not places and spec.has_location and spec.origin is not None:
        places = [spec.origin]
    return [str(Path(place).absolute().parent) for place in places]


def _current_directory() -> list[str]:
    try:
        return [str(Path.cwd())]
    except FileNotFoundError:  # deleted under us
        return []


def _argument(number: int, text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        bare = isinstance(error, json.JSONDecodeError)
        hint = f" A string is written '{json.dumps(text)}'." if bare else ""
        raise ConfigError(f"argument {number} is no JSON: {text:.200} ({error}).{hint}") from error


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object with the same key twice")
    return made


def _constant(name: str) -> float:
    raise ValueError(f"JSON has no {name}")
