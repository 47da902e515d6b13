"""The command line, `sandboxed`: one file per command.

What costs time to import (the engine) is imported by the command that runs, so that `--help` does not.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

import click

from sandbox_exec import __version__
from sandbox_exec.cli.call import call
from sandbox_exec.cli.exec import exec_
from sandbox_exec.cli.profiles import profiles
from sandbox_exec.cli.report import BOUNDARY, INTERRUPTED, OUR_ERROR, say
from sandbox_exec.cli.status import STATUS
from sandbox_exec.errors import BoundaryUnavailable, SandboxError

HELP: Final = """Runs a callable or a command in a child process, and tells the truth about how it ended.

A process of its own, a clean environment, limits, one true ending, no process left behind. No profile is
a wall yet: do not run code that you do not trust.

\b
Examples:
  sandboxed call math:sqrt 2
  sandboxed exec --wall 5s -- make test
  sandboxed exec --json -- sh -c 'kill -SEGV $$'
  sandboxed profiles none

\b
Exit codes of call and exec:
  the command's own (call: 0, or 1 when the target failed)
  124    the wall limit
  125    our error, before anything of yours ran (a wrong option, no such program)
  126    the profile's boundary cannot be had here
  128+n  ended by signal n; call: 130 also after Ctrl-C

--status-fd tells the cases apart.
"""


@click.group(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sandboxed", message="%(prog)s %(version)s")
def commands() -> None:
    """See `HELP`."""


commands.add_command(call)
commands.add_command(exec_)
commands.add_command(profiles)


def main() -> NoReturn:
    """The entry point."""
    code = _status()
    try:
        STATUS.write(code)
    except OSError as error:
        say(f"cannot write to --status-fd: {error.strerror}")
    sys.exit(code)


def _status() -> int:
    try:
        return int(commands.main(prog_name="sandboxed", standalone_mode=False) or 0)
    except click.UsageError as error:
        error.show()  # with a hint at --help
        return OUR_ERROR
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SandboxError as error:
        say(str(error))
        return BOUNDARY if isinstance(error, BoundaryUnavailable) else OUR_ERROR
    except OSError as error:  # of click's own printing
        say(f"cannot write: {error.strerror}")
        # What click left in the buffer would fail once more at exit, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OUR_ERROR
    except Exception as error:  # noqa: BLE001 Python's own exit code, 1, would read as the command's
        import traceback

        say(f"a bug of sandboxed, please report it: {error!r}\n{traceback.format_exc()}")
        return OUR_ERROR
