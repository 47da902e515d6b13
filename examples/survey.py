"""One child per file of a folder, and the truth about how each one ended.

    python examples/survey.py [FOLDER] [--most N] [--with-accidents]

Each child counts lines and words of one file and takes its SHA-256. With --with-accidents four of them end
badly: one is killed from outside while it works, one is cancelled, one writes without end until its wall
limit, one takes memory until its memory limit. Exit code 0 means: every child ended as it should, and the
outcome says so.

It shows no progress: the table comes once, when the last child has ended. On a terminal `rich` colours and
fits it; without `rich`, and elsewhere, there are plain columns.
"""

from __future__ import annotations

import argparse
import contextlib
import email
import hashlib
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sandbox_exec as sx
import sandbox_worker as sw

if TYPE_CHECKING:
    from collections.abc import Callable

HEADINGS = ("file", "state", "classified", "exit", "wall", "value, or cause")
WIDE = 100
MIB = 1 << 20
KEPT_BYTES = 64 * 1024
USUAL = sx.Limits(wall_seconds=10.0, memory_bytes=512 * MIB)

# What runs in the children. This file is their __main__ module, so they get these functions by value.


def survey(path: str) -> dict[str, int | str]:
    """The job itself."""
    data = Path(path).read_bytes()
    lines = data.decode("utf-8", "replace").splitlines()
    return {
        "lines": len(lines),
        "words": sum(len(line.split()) for line in lines),
        "longest": max(map(len, lines), default=0),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def survey_for_ever(path: str) -> None:
    """Works until somebody ends it, and leaves what it has done so far."""
    context, rounds = sw.context(), 0
    while True:
        survey(path)
        rounds += 1
        context.partial({"rounds": rounds})
        context.emit("round", number=rounds)
        time.sleep(0.01)


def flood(path: str) -> None:
    """Prints the file again and again."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    while True:
        print(text)


def hoard(path: str) -> None:
    """Keeps the file in memory again and again."""
    kept = []
    while True:
        kept.append(Path(path).read_bytes() * 1_000)


# What happens in the host.


@dataclass(frozen=True)
class Job:
    """What a child is to do, what becomes of it, and the ending that is true of that.

    Attributes:
        target: runs in the child, gets the file's path.
        limits: the child's.
        expected: state and classification.
        then: is done to the child while it works.
    """

    target: Callable[[str], object] = survey
    limits: sx.Limits = USUAL
    expected: tuple[str, str] = ("SUCCEEDED", "")
    then: Callable[[sx.Child], object] | None = None


def kill_from_outside(child: sx.Child) -> None:
    """What a careless administrator, or the kernel short of memory, might do."""
    subprocess.run(["kill", "-KILL", str(child.pid)], check=True)


def cancel(child: sx.Child) -> None:
    """What a user might do."""
    child.cancel("no longer wanted")


PLAIN = Job()
ACCIDENTS = (
    Job(survey_for_ever, expected=("INTERRUPTED", "SIGNAL"), then=kill_from_outside),
    Job(survey_for_ever, expected=("CANCELLED", "CANCELLED"), then=cancel),
    Job(flood, sx.Limits(wall_seconds=1.5, output_bytes=KEPT_BYTES), ("FAILED", "TIMEOUT")),
    Job(hoard, sx.Limits(wall_seconds=10.0, memory_bytes=256 * MIB), ("FAILED", "MEMORY_LIMIT")),
)


def run(jobs: list[tuple[Path, Job]]) -> list[sx.Outcome]:
    """Runs all jobs at once, at most eight at a time."""
    with sx.SandboxExecutor(max_children=8) as executor:
        children = [
            executor.launch(job.target, (str(path),), limits=job.limits, name=path.name) for path, job in jobs
        ]
        for child, (_, job) in zip(children, jobs, strict=True):
            if job.then is not None:
                next((event for event in child.events() if event.source == "child"), None)  # it works
                job.then(child)
        return [child.outcome(timeout=30) for child in children]


def row(path: Path, outcome: sx.Outcome) -> tuple[str, ...]:
    """An outcome in words."""
    error, value = outcome.error, outcome.value
    words = error.message if error is not None else repr(value)
    if isinstance(value, dict):
        words = f"{value['lines']:,} lines, {value['words']:,} words"
    if isinstance(outcome.partial, dict):
        words += f"; rounds until then: {outcome.partial['rounds']}"
    if outcome.stdout.dropped_bytes:
        words += f"; wrote {outcome.stdout.total_bytes:,} bytes, kept {KEPT_BYTES:,}"
    code, number = outcome.exit.code, outcome.exit.signal
    how = signal.Signals(number).name if number is not None else f"code {code}"
    classification = error.classification if error is not None else ""
    return path.name, outcome.state.value, classification, how, f"{outcome.usage.wall_seconds:.2f} s", words


def draw(rows: list[tuple[str, ...]]) -> None:
    """The table on a terminal, coloured and fitted; an ImportError where there is no `rich`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, table = Console(), Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in HEADINGS[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(HEADINGS[-1], overflow="fold")
    if console.width < WIDE:
        table.columns[0].max_width = 17
    for cells in rows:
        table.add_row(*(Text(cell, "green" if cells[1] == "SUCCEEDED" else "yellow") for cell in cells))
    console.print(table)


def show(rows: list[tuple[str, ...]]) -> None:
    """The table, as well as it can be shown here."""
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            draw(rows)
            return
    widths = [max(len(cells[i]) for cells in [HEADINGS, *rows]) for i in range(len(HEADINGS))]
    for cells in [HEADINGS, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(email.__file__).parent)
    parser.add_argument("--most", type=int, default=24, metavar="N", help="at most N files (default: 24)")
    parser.add_argument("--with-accidents", action="store_true", help="let four children end badly")
    asked = parser.parse_args()
    try:
        files = sorted(path for path in asked.folder.iterdir() if path.is_file())[: max(asked.most, 0)]
    except OSError as error:
        parser.error(str(error))
    jobs = [(path, PLAIN) for path in files]
    if asked.with_accidents:
        if len(files) < len(ACCIDENTS):
            parser.error(f"{asked.folder}: accidents need {len(ACCIDENTS)} files, there are {len(files)}")
        step = len(files) // len(ACCIDENTS)
        for index, accident in enumerate(ACCIDENTS):
            jobs[index * step] = files[index * step], accident

    began = time.monotonic()
    outcomes = run(jobs)
    rows = [row(path, outcome) for path, outcome in zip(files, outcomes, strict=True)]
    show(rows)
    counts = ", ".join(f"{count} {state}" for state, count in Counter(cells[1] for cells in rows).items())
    surprises = [cells[0] for cells, (_, job) in zip(rows, jobs, strict=True) if cells[1:3] != job.expected]
    verdict = f"NOT AS EXPECTED: {', '.join(surprises)}" if surprises else "every ending is the expected one"
    print(f"{len(rows)} children in {time.monotonic() - began:.1f} s: {counts or 'none'}; {verdict}.")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
