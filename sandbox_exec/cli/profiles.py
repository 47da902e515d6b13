"""`sandboxed profiles [PROFILE]`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from sandbox_exec.cli import report
from sandbox_exec.cli.plain import plain
from sandbox_exec.errors import ConfigError, ProfileError

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox_exec import Profile

HELP: Final = """Lists the profiles, or says in words what a child under one of them gets and does not get.

PROFILE is a name, or the path of a TOML file: what has a slash or ends in .toml. Names are looked up in the
folders of $SANDBOX_EXEC_PROFILES, in profiles/ of the configuration directory, and among those that come
with this package; the first one found counts.

The list says of each whether a launch under it is possible here. One that requires kernel layers, which
this version does not have, is listed and explained, and refused at launch.

\b
Examples:
  sandboxed profiles
  sandboxed profiles none
  sandboxed profiles ./mine.toml
  sandboxed profiles --json pure
"""


@click.command(help=HELP, short_help="Lists the profiles, or explains one.")
@click.argument("name", metavar="[PROFILE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, for machines.")
def profiles(name: str | None, *, as_json: bool) -> int:
    """See `HELP`."""
    from sandbox_exec.confinement.profile import available, load_profile  # `--help` needs no profile

    if name is not None:
        profile = load_profile(name)
        from sandbox_exec.confinement.words import TOOLSETS

        if as_json:
            text = json.dumps(_record(profile) | {"profile": profile.resolved()})
        else:
            text = profile.explain(TOOLSETS)
    else:
        records = [_listed(name, file) for name, file in sorted(available().items())]
        text = json.dumps(records) if as_json else _table(records)
    report.write(1, f"{text.rstrip() if as_json else plain(text).rstrip()}\n".encode())
    return 0


def _listed(name: str, file: Path) -> dict[str, object]:
    from sandbox_exec.confinement.profile import load_profile

    try:
        return _record(load_profile(file))
    except ProfileError as error:  # the others are listed all the same
        said: dict[str, object] = {"name": name, "description": "", "file": str(file), "digest": None}
        return said | {"launchable": False, "reason": str(error)}


def _record(profile: Profile) -> dict[str, object]:
    from sandbox_exec.confinement.plan import compile_plan

    reason = None
    try:
        compile_plan(profile)
    except ConfigError as error:
        reason = str(error)
    return {
        "name": profile.name,
        "description": profile.description,
        "file": profile.source,
        "digest": profile.digest,
        "launchable": reason is None,
        "reason": reason,
    }


def _table(records: list[dict[str, object]]) -> str:
    width = max((len(str(record["name"])) for record in records), default=0)
    lines = [f"{'NAME':<{width}}  LAUNCH  DESCRIPTION"]
    for record in records:
        said = record["reason"] if record["digest"] is None else record["description"]
        can = "yes" if record["launchable"] else "no"
        lines.append(f"{record['name']:<{width}}  {can:<6}  {said}".rstrip())
    return "\n".join(lines)
