"""Fault injection: a store is killed at every point of its life that matters, and must recover.

    python -m pytest examples/test_fault_injection.py

`Store` is a small key-value store over a write-ahead log. A child fills one, and at each named point it waits
for the test: `emit` tells the point, `boundary` takes the test's steer. The test follows `child.events()`,
kills the child at one point, and checks that no acknowledged write is lost, that no torn record is read, and
that a new child can go on from there. Two stores that are wrong on purpose must fail it.

SIGKILL shows what a crashed process leaves, not what a power cut does: a missing fsync goes unnoticed.
"""

import json
import os
import signal
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandbox_exec as sx
import sandbox_worker as sw

WRITES = [(f"key {number % 3}", f"value {number} " * 50) for number in range(5)]
OF_A_WRITE = ("record half written", "record written", "record synced", "acknowledged")
OF_COMPACTION = ("half written", "written", "synced", "renamed", "alone")
# Where, and at which visit: in the first write, in the one after the compaction, and in the compaction.
KILLS = [(name, visit) for name in OF_A_WRITE for visit in (1, 4)]
KILLS += [(f"snapshot {name}", 1) for name in OF_COMPACTION]


def point(name: str) -> None:
    """In the child: tells where it is, and waits for the test's word."""
    sw.context().emit("point", name=name)
    while not sw.context().boundary():
        time.sleep(0.001)


class Store:
    """Values by key. The log has a checked line for each write, the snapshot what was before the log."""

    def __init__(self, folder: str) -> None:
        self.log, self.snapshot = Path(folder, "log"), Path(folder, "snapshot")
        written = list(self.records(self.log))
        self.values = dict([*self.records(self.snapshot), *written])
        self.cut_log(sum(len(self.line(*record)) for record in written))

    def line(self, key: str, value: str) -> bytes:
        """A record: checksum, space, JSON, newline."""
        text = json.dumps([key, value]).encode() + b"\n"
        return b"%08x %s" % (zlib.crc32(text), text)

    def records(self, file: Path) -> Iterator[tuple[str, str]]:
        """What a file holds up to the first record that is not whole, of which nobody was told."""
        for line in file.read_bytes().splitlines(keepends=True) if file.exists() else ():
            checksum, _, text = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(text):
                return
            yield tuple(json.loads(text))

    def cut_log(self, size: int) -> None:
        """Takes a torn record away, lest the next one be appended to it."""
        with self.log.open("ab") as log:
            log.truncate(size)

    def append(self, file: Path, data: bytes, what: str) -> None:
        """Writes and syncs, with places to crash in."""
        with file.open("ab", buffering=0) as opened:
            for part, how in ((data[:40], "half written"), (data[40:], "written")):
                opened.write(part)
                point(f"{what} {how}")
            os.fsync(opened.fileno())
            point(f"{what} synced")

    def put(self, key: str, value: str) -> None:
        """Returns, and so acknowledges, once the write is safe."""
        self.append(self.log, self.line(key, value), "record")
        self.values[key] = value

    def compact(self) -> None:
        """Moves the log into a new snapshot; the rename is the moment from which it counts."""
        new = self.snapshot.with_suffix(".new")
        new.write_bytes(b"")
        self.append(new, b"".join(self.line(*record) for record in self.values.items()), "snapshot")
        new.replace(self.snapshot)
        point("snapshot renamed")
        self.cut_log(0)
        point("snapshot alone")


class Hasty(Store):
    """Wrong on purpose."""

    def put(self, key: str, value: str) -> None:
        """Acknowledges what is in memory only."""
        self.values[key] = value


class Careless(Store):
    """Wrong on purpose."""

    def cut_log(self, size: int) -> None:
        """Leaves the torn record where it is."""


def fill(kind: type[Store], folder: str, first: int) -> None:
    """In the child: the writes from this one on, with a compaction in between."""
    store = kind(folder)
    for number in range(first, len(WRITES)):
        store.put(*WRITES[number])
        point("acknowledged")
        if number == 2:
            store.compact()


def live(kind: type[Store], folder: str, first: int, *kill_at: object) -> tuple[list[object], sx.Outcome]:
    """One child's life, to its end or to a kill: the points that it passed, and how it ended."""
    passed: list[object] = []
    with sx.SandboxExecutor(imports=["sandbox_exec"]) as executor:  # for this file's own import of it
        child = executor.launch(fill, (kind, folder, first), limits=sx.Limits(wall_seconds=30.0))
        for event in (event for event in child.events() if event.kind == "point"):
            passed.append(event.data["name"])
            here = (passed[-1], passed.count(passed[-1])) == kill_at
            child.kill() if here else child.steer("go on")
        return passed, child.outcome()


def crash_and_recover(kind: type[Store], folder: str, kill_at: str, visit: int) -> None:
    """Kills a child at this point, and checks what it leaves behind."""
    passed, outcome = live(kind, folder, 0, kill_at, visit)
    assert (passed[-1], outcome.exit.signal) == (kill_at, signal.SIGKILL), outcome
    told = passed.count("acknowledged")  # the write after these may be there, wholly, or not at all
    assert kind(folder).values in (dict(WRITES[:told]), dict(WRITES[: told + 1])), "lost or torn at once"
    live(kind, folder, told)[1].unwrap()
    assert kind(folder).values == dict(WRITES), "lost or torn later"


@pytest.mark.parametrize(("kill_at", "visit"), KILLS)
def test_a_store_that_is_killed_recovers(tmp_path: Path, kill_at: str, visit: int) -> None:
    """Killed anywhere, it has every write that it acknowledged."""
    crash_and_recover(Store, str(tmp_path), kill_at, visit)


@pytest.mark.parametrize(("kind", "kill_at"), [(Hasty, "acknowledged"), (Careless, "record half written")])
def test_a_store_that_is_wrong_is_caught(tmp_path: Path, kind: type[Store], kill_at: str) -> None:
    """Or else the test above would prove nothing."""
    with pytest.raises(AssertionError, match="lost or torn"):
        crash_and_recover(kind, str(tmp_path), kill_at, 1)
