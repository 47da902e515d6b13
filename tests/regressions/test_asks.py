"""What many children do through their host, one store cannot be harmed by."""

import contextlib
import sqlite3
import subprocess
import sys
import time

import sandbox_exec as sx
from children import asking
from children.watch import CANCELLED, GRACE, SUCCEEDED, Case, how, limits, regression, wait_for_event

CHILDREN, RECORDS = 20, 100
HELD = 3.0  # seconds

HOLD = """
import sqlite3, sys, time
store = sqlite3.connect(sys.argv[1], isolation_level=None)
store.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
store.execute("COMMIT")
"""


@contextlib.contextmanager
def held_by_another(store):
    """A foreign process holds the store for a while."""
    argv = [sys.executable, "-c", HOLD, store, str(HELD)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield time.monotonic() + HELD
        assert process.wait(30) == 0


@regression("anthropics/claude-code#14124")
def test_records_of_parallel_children_are_kept_once_or_refused_with_a_reason(report, profile, tmp_path):
    store, registry = tmp_path / "store.db", sx.ToolsetRegistry()
    with contextlib.closing(sqlite3.connect(store)) as made:
        made.execute("CREATE TABLE records (writer INTEGER, number INTEGER)")

    def insert(writer, number, seconds):
        with contextlib.closing(sqlite3.connect(store, timeout=seconds)) as opened, opened:
            opened.execute("PRAGMA synchronous = OFF")
            opened.execute("INSERT INTO records VALUES (?, ?)", (writer, number))

    @registry.tool("store")
    def record(writer: int, number: int) -> None:
        # Every fourth of the children's records waits the foreign process out, the others give up.
        insert(writer, number, 20.0 if writer % 4 == 0 else 0.1)

    with Case(profile, tmp_path, toolsets=["store"], registry=registry, max_children=30) as case:
        idle = case.launch(time.sleep, (600,), limits=limits())
        wait_for_event(idle, "running")
        with held_by_another(store) as until:
            children = [case.launch(asking.recording, (writer, RECORDS)) for writer in range(CHILDREN)]
            for child in children:
                wait_for_event(child, "recording")

            # The control: who does not wait for the store is told that it is locked.
            with contextlib.suppress(sqlite3.OperationalError):
                insert(-1, -1, 0.0)
                raise AssertionError("the store is not held")

            # Every thread for tools waits for the store, and yet:
            asked_at = time.monotonic()
            idle.cancel()
            children[0].cancel()  # its ask is one of those that wait
            assert how(case.settle(idle)) == CANCELLED
            assert how(case.settle(children[0])) == CANCELLED
            assert time.monotonic() < min(until, asked_at + 2 * GRACE + 1)
        got = [case.settle(child, within=40) for child in children[1:]]

    assert [how(outcome) for outcome in got] == [SUCCEEDED] * (CHILDREN - 1)
    with contextlib.closing(sqlite3.connect(store)) as opened:
        found = opened.execute("SELECT writer, number FROM records").fetchall()
    assert len(found) == len(set(found)), "a record was kept twice"
    kept = {pair for pair in found if pair[0] != 0}
    told = {(writer, number): word for writer, outcome in enumerate(got, 1) for number, word in outcome.value}
    assert len(told) == (CHILDREN - 1) * RECORDS
    assert {pair for pair, word in told.items() if word == "kept"} == kept
    refused = {word for word in told.values() if word != "kept"}
    assert refused == {"failed: OperationalError: database is locked"}
