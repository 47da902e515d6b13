"""`sandboxed exec [options] -- argv...`."""

from __future__ import annotations

from typing import Final

import click

from sandbox_exec.cli import options, report

HELP: Final = """Runs a command in a child. Its whole process tree ends with it, and with `sandboxed`.

For now its standard input is at its end, and what it prints is kept (of each stream at most 1M, half of
it head and half tail, see --output) and shown when it has ended: standard output first, then standard
error. Nothing is shown while it runs.

Its exit code becomes that of `sandboxed`; see `sandboxed --help` for the other codes.

\b
Examples:
  sandboxed exec -- make test
  sandboxed exec --wall 5s --memory 512M -- python3 job.py --fast
  sandboxed exec --json -- sh -c 'exit 3'
"""


@click.command("exec", help=HELP, short_help="Runs a command, passes its exit code on.")
@options.shared
@click.argument("argv", metavar="[--] PROGRAM [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(argv: tuple[str, ...], *, profile: str | None, as_json: bool, **limits: float | None) -> int:
    """See `HELP`."""
    from sandbox_exec import Command  # `--help` needs no engine
    from sandbox_exec.cli.running import run

    outcome, interrupted = run(Command(argv), (), name=argv[0], profile=profile, limits=limits)
    if as_json:
        from sandbox_exec.cli import jsonform  # only here

        report.write(1, f"{jsonform.outcome_text(outcome)}\n".encode())
    else:
        report.write(1, report.raw(outcome.stdout))
        report.write(2, report.raw(outcome.stderr))
        report.complain(argv[0], outcome, is_command=True)
    return report.INTERRUPTED if interrupted else report.exit_code(outcome, is_command=True)


exec_.context_settings["allow_interspersed_args"] = False  # what follows the program is the program's
