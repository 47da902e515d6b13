"""A worker of a job board: a SQLite file with jobs, each of which runs in a child of its own.

    python examples/job_board.py --jobs 12                   a fresh board with a mix of jobs, then its table
    python examples/job_board.py --board FILE [--jobs N]     a board that stays; without --jobs: go on with it

A job is claimed by one UPDATE statement, so any number of workers may share a board. Its row tells how it
ended: done, failed (it raised), killed (a signal), out of memory, or timed out. A killed job is retried once,
the others are not. A claim is a lease, which the worker renews while it lives: SIGKILL the worker, whose
children die with it, and start it again, and what it had claimed is queued again once the lease has run out.
So a job may run twice, though its row is written once: jobs must be idempotent, as with every such board.

The limits are of a profile made narrower than `none`. No kernel wall yet: the jobs are code that you trust.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import secrets
import signal
import sqlite3
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

import sandbox_exec as sx

AT_ONCE = 4
ATTEMPTS = 2
LEASE_SECONDS = 3.0
LIMITS = sx.Limits(wall_seconds=2.0, memory_bytes=256 << 20, output_bytes=64 << 10, grace_seconds=0.5)

# Times are SQLite's, in days, so that workers on one machine agree on them and a reboot changes nothing.
SCHEMA = """
    CREATE TABLE IF NOT EXISTS jobs (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, payload TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'queued', attempts INTEGER NOT NULL DEFAULT 0,
        detail TEXT NOT NULL DEFAULT '', claim TEXT, lease REAL)"""
CLAIM = """
    UPDATE jobs SET status = 'running', attempts = attempts + 1,
        claim = ?, lease = julianday('now') + ? / 86400
    WHERE id = (SELECT id FROM jobs WHERE status = 'queued' ORDER BY attempts, id LIMIT 1)
    RETURNING id, kind, payload, attempts"""
RENEW = "UPDATE jobs SET lease = julianday('now') + ? / 86400 WHERE claim = ? AND status = 'running'"
# The attempt is given back: it is not the job's fault that its worker died.
REQUEUE = """
    UPDATE jobs SET status = 'queued', attempts = attempts - 1, claim = NULL
    WHERE status = 'running' AND lease < julianday('now') RETURNING id"""
# By claim: a worker that stood still for longer than its lease overwrites nobody's result.
FINISH = "UPDATE jobs SET status = ?, detail = ? WHERE claim = ? AND status = 'running'"
OPEN = "SELECT 1 FROM jobs WHERE status IN ('queued', 'running') LIMIT 1"


def perform(kind: str, payload: str, attempt: int) -> object:
    """Does one job, in the child. What it cannot make sense of fails here too, harmlessly."""
    given = json.loads(payload)
    if kind == "words":
        return len(given["text"].split())
    if kind == "divide":
        return given["a"] / given["b"]
    if kind == "crash" or (kind == "flaky" and attempt == 1):
        os.kill(os.getpid(), signal.SIGSEGV)  # noqa: TID251 itself, in the child
    if kind == "flaky":
        return f"well at attempt {attempt}"
    if kind == "hoard":
        return len(bytearray(given["bytes"]))
    if kind == "hang":
        time.sleep(3600)
    raise LookupError(f"no job is of the kind {kind!r}")


MIX = [
    ("words", '{"text": "so much depends upon a red wheel barrow"}'),
    ("divide", '{"a": 1, "b": 0}'),
    ("crash", "{}"),
    ("hang", "{}"),
    ("flaky", "{}"),
    ("hoard", '{"bytes": 8000000000}'),
]


def verdict(outcome: sx.Outcome) -> tuple[str, str]:
    """Status and detail. Of limits by `exit.cause`, which no exception's name can feign."""
    if outcome.error is None:
        return "done", repr(outcome.value)[:200]
    status = "failed" if outcome.state is sx.SubagentState.FAILED else "killed"
    status = {"limit:memory": "out of memory", "limit:wall": "timed out"}.get(outcome.exit.cause, status)
    return status, f"{outcome.error.classification}: {outcome.error.message}"[:200]


def work(board: sqlite3.Connection) -> None:
    """Works until no job is open, waiting for other workers' leases too."""
    held: dict[Future[object], tuple[sx.Child, str, int, int]] = {}
    with sx.SandboxExecutor(sx.load_profile("none").narrow(limits=LIMITS), max_children=AT_ONCE) as executor:
        while True:
            for (number,) in board.execute(REQUEUE).fetchall():
                print(f"job {number}: its worker is gone, queued again", flush=True)
            while len(held) < AT_ONCE:
                claim = secrets.token_hex(8)
                if (row := board.execute(CLAIM, (claim, LEASE_SECONDS)).fetchone()) is None:
                    break
                job, kind, payload, attempts = row
                future = executor.submit(perform, kind, payload, attempts)
                held[future] = future.child, claim, job, attempts
            if not held and board.execute(OPEN).fetchone() is None:
                return
            if not held:
                time.sleep(LEASE_SECONDS / 4)  # the rest is others'
            for ended in wait(held, LEASE_SECONDS / 4, FIRST_COMPLETED).done:
                child, claim, job, attempts = held.pop(ended)
                status, detail = verdict(child.outcome())
                again = status == "killed" and attempts < ATTEMPTS
                kept = board.execute(FINISH, ("queued" if again else status, detail, claim)).rowcount
                print(f"job {job}: {status}{', once more' * again}{', lease lost' * (not kept)}", flush=True)
            board.executemany(RENEW, [(LEASE_SECONDS, claim) for _, claim, _, _ in held.values()])


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--board", type=Path, metavar="FILE", help="default: a temporary one")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="fill a fresh board with N jobs")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        path = asked.board or Path(stack.enter_context(tempfile.TemporaryDirectory()), "board.sqlite")
        if path.exists() == bool(asked.jobs):
            parser.error(f"{path} is {'there already' if asked.jobs else 'not there yet: give --jobs N'}")
        board = sqlite3.connect(path, timeout=10, isolation_level=None)
        stack.callback(board.close)
        board.execute("BEGIN IMMEDIATE")  # all of them or none, if we are killed here
        board.execute(SCHEMA)
        mix = itertools.islice(itertools.cycle(MIX), asked.jobs)
        board.executemany("INSERT INTO jobs (kind, payload) VALUES (?, ?)", mix)
        board.execute("COMMIT")
        work(board)
        for row in board.execute("SELECT id, kind, status, attempts, detail FROM jobs ORDER BY id"):
            print("{:>4}  {:<7} {:<14} {}  {}".format(*row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
