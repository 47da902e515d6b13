"""`sandboxed call module:function [JSON args...]`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sandbox_exec.cli import options, report
from sandbox_exec.cli.plain import plain
from sandbox_exec.errors import ConfigError

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
    from sandbox_exec.cli.running import run  # `--help` needs no engine

    outcome, interrupted = run(target, args, name=reference, profile=profile, limits=limits)
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


def _target(reference: str) -> Callable[..., object]:
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise ConfigError(f"{reference!r} is no MODULE:FUNCTION, such as math:sqrt")
    return _deferred(found[1], found[2], _directories(found[1]))


def _deferred(module: str, name: str, directories: list[str]) -> Callable[..., object]:
    """A function that imports the target where it is called: in the child, which gets it by value.

    Importing it here, for its reference, would run the module's code in the host.
    """

    def call_target(*args: object) -> object:
        import sys  # by value it has no module of its own to look into

        sys.path += [directory for directory in directories if directory not in sys.path]
        found: Any = __import__(module, fromlist=("x",))
        for part in name.split("."):
            found = getattr(found, part)
        return found(*args)

    return call_target


def _directories(module: str) -> list[str]:
    """Where the child looks for the module beyond its own path. Nothing is imported here."""
    from importlib.machinery import PathFinder  # `--help` has no use for it
    from importlib.util import find_spec

    top = module.partition(".")[0]
    here = _current_directory()
    spec = PathFinder.find_spec(top, [*sys.path, *here]) or find_spec(top)
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
