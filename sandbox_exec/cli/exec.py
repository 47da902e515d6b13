"""`sandboxed exec [options] -- argv...`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import click

from sandbox_exec.cli import options, report
from sandbox_exec.cli.status import STATUS

if TYPE_CHECKING:
    from sandbox_exec import Child, Outcome
    from sandbox_exec.cli.foreground import Caller
    from sandbox_exec.executor import Request

HELP: Final = """Runs a command in a child: put it in front of any command line.

Standard input, output and error of the command are those of `sandboxed` itself: nothing is copied or kept
back. They may be pipes, files, /dev/null or a terminal; anything else there is refused. A terminal is
bridged: the command gets a pty of ours. Its environment is the profile's allow-list.

Its whole process tree ends with it, with `sandboxed`, and with the process that started `sandboxed`.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to it; the third SIGINT or SIGTERM
within 5 s kills the tree.

Its exit code becomes that of `sandboxed`; see `sandboxed --help` for the other codes. With --json it has no
input, and its output is in the line of JSON (of each stream at most 1M, see --output).

\b
Examples:
  sandboxed exec -- make test
  sandboxed exec --wall 5s --memory 512M -- python3 job.py --fast
  sandboxed exec -- bash
  sandboxed exec --json -- sh -c 'exit 3'
"""

TTY: Final = """How the command gets a terminal: by a pty of ours, or the terminal itself, into which it could
then type [default: bridge]."""
# Of these a shell says nothing either.
_QUIET: Final = frozenset({signal.SIGINT, signal.SIGPIPE})


@click.command("exec", help=HELP, short_help="Runs a command, passes its streams and exit code on.")
@options.shared
@click.option("--tty", type=click.Choice(["bridge", "direct"]), default="bridge", help=TTY)
@click.argument("argv", metavar="[--] PROGRAM [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(
    argv: tuple[str, ...], *, profile: str | None, as_json: bool, tty: str, **limits: float | None
) -> int:
    """See `HELP`."""
    from sandbox_exec.cli.foreground import Caller  # `--help` needs none of this

    with Caller() as caller:  # before what takes time to import
        from sandbox_exec import Command, Limits
        from sandbox_exec.executor import Request

        asked = Limits(**limits)  # type: ignore[arg-type]  # the names are the fields'
        request = Request(Command(argv), (), {}, profile=profile, limits=asked, name=argv[0])
        outcome, passed = _run(request, caller, captured=as_json, bridged=tty == "bridge")
    STATUS.outcome, STATUS.is_command = outcome, True
    if as_json:
        from sandbox_exec.cli import jsonform  # only here

        report.write(1, f"{jsonform.outcome_text(outcome)}\n".encode())
    elif outcome.exit.signal not in _QUIET | passed or outcome.exit.cause != "none":
        report.complain(argv[0], outcome, is_command=True)
    return report.exit_code(outcome, is_command=True)


exec_.context_settings["allow_interspersed_args"] = False  # what follows the program is the program's


def _run(
    request: Request, caller: Caller, *, captured: bool, bridged: bool
) -> tuple[Outcome, frozenset[int]]:
    from dataclasses import replace

    from sandbox_exec import SandboxExecutor
    from sandbox_exec.cli import foreground, stdio
    from sandbox_exec.engine.stdio import Stdio

    terminals = [] if captured else stdio.terminals()
    bridge = None
    if terminals and bridged:
        from sandbox_exec.cli.terminal import Bridge

        bridge = Bridge(terminals)

    def start() -> Child:
        if captured:
            return executor._started(request)  # noqa: SLF001 one product
        given = stdio.copies(dict.fromkeys(terminals, bridge.slave) if bridge else {})
        own = Stdio(given, terminals[0] if bridge else None)
        try:
            child = executor._started(replace(request, stdio=own))  # noqa: SLF001 "
        except BaseException:
            own.close()
            raise
        stdio.let_go(keep=terminals)
        return child

    with SandboxExecutor(max_children=1) as executor:
        return foreground.run(start, caller, bridge)
