"""The host under fire: a real executor, hostile children in a few slots, siblings that must not notice.

What has to hold, whatever a child sends:

* its outcome is the one that the oracle reads from the script, after exactly as many frames;
* a sibling that answers steers answers every one, a sibling that sleeps goes on sleeping;
* no exception on any thread; nothing is imported, compiled, unpickled or opened where frames are read;
* memory and descriptors are in the end what they were.
"""

import collections
import os
import statistics
import sys
import tempfile
import threading
import time
import traceback
from array import array
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from children import hostile
from fuzz import scripts, worker
from fuzz.oracle import Expectation, Oracle
from fuzz.siblings import Siblings, at_rest, resident
from fuzz.wire import CANARY
from sandbox_exec import Command, Limits, SandboxExecutor
from sandbox_exec.engine import hearing, spawner
from sandbox_exec.toolsets.tool import Tool
from sandbox_worker.protocol import DEFAULT_RESULT_ITEMS

HANG_SECONDS = 30.0
GRACE_SECONDS = 60.0  # so long that no rung of the ladder comes between, on any machine
LADDER_SECONDS = 0.1
GROWTH_BYTES = 16 << 20
SHORT_GROWTH_BYTES = 128 << 20
GROWTH_BLOCKS = 30_000
MEMORY_BYTES, PROCESSES = 1 << 30, 100
FAILURES = 10
WARM_UP_SECONDS = 120.0
TELL_SECONDS = 10.0
LOOK_SECONDS = 0.1

_READERS = ("sandbox-exec broker", "sandbox-exec decoder")
# Modules that the host loads at first use, on whatever thread that is.
_LAZY = ("binascii", "decimal", "fcntl", "pathlib", "uuid", "zoneinfo")
_ALARMING = (
    "compile", "exec", "import", "marshal.load", "pickle.", "os.system", "os.exec", "os.fork",
    "os.posix_spawn", "os.spawn", "subprocess.", "open", "ctypes.", "code.__new__", "function.__new__",
    "socket.connect", "shutil.", "os.remove", "os.rename", "os.chmod", "os.kill",
)  # fmt: skip


@dataclass
class Report:
    seed: int
    seconds: float = 0.0
    frames: int = 0
    children: int = 0
    outcomes: collections.Counter = field(default_factory=collections.Counter)  # (state, ending)
    kinds: collections.Counter = field(default_factory=collections.Counter)
    in_doubt: int = 0
    growth: int = 0
    peak_growth: int = 0
    pongs: array = field(default_factory=lambda: array("d"))  # not objects: they would pin what bursts leave
    blocks: int = 0  # objects, near enough
    descriptors: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.frames / max(self.seconds, 1e-9)
        at_rest, under_way = self.growth / 1e6, self.peak_growth / 1e6
        lines = [
            f"seed {self.seed}: {self.frames:,} frames of {self.children:,} children, {rate:,.0f} frames/s",
            f"oracle: sure of {self.children - self.in_doubt:,} endings and frame counts",
            f"oracle: sure of {self.in_doubt:,} endings only",
            f"after warm-up: {at_rest:+.1f} MB at rest, {under_way:+.1f} MB at most under way",
            f"after warm-up: {self.blocks:+,} objects, {self.descriptors:+d} descriptors",
        ]
        if len(self.pongs) > 1:
            cuts = statistics.quantiles(self.pongs, n=100)
            lines.append(
                f"sibling: {len(self.pongs):,} answers, none lost; p50 {cuts[49] * 1e3:.2f} ms, "
                f"p99 {cuts[98] * 1e3:.2f} ms, at most {max(self.pongs) * 1e3:.0f} ms"
            )
        for state in scripts.STATES:
            found = {ending: count for (where, ending), count in self.outcomes.items() if where == state}
            words = [f"{ending} {found[ending]:,}" for ending in sorted(found, key=found.get, reverse=True)]
            lines.append(f"{state}: {', '.join(words)}")
        lines += [f"FAILURE: {failure}" for failure in self.failures]
        return "\n".join(lines)


class Fuzzer:
    """One run. Use `run`; only one at a time in a process, for it looks into the engine."""

    def __init__(
        self, seed: int, *, slots: int = 4, kind: str | None = None, state: str | None = None
    ) -> None:
        self.report = Report(seed)
        self._seed, self._slots, self._kind, self._state = seed, slots, kind, state
        self._numbers = iter(range(worker.MOST_SCRIPTS))
        self._lock = threading.Lock()
        self._heard: dict[str, int] = {}
        self._enough = threading.Event()
        self._tell: Callable[[str], None] = str

    def run(self, seconds: float, numbers: range | None = None, tell: Callable[[str], None] = str) -> Report:
        """Fuzzes for so long, or until these scripts are through; `tell` gets a line now and then."""
        self._tell = tell
        if numbers is not None:
            self._numbers = iter(numbers)
        with tempfile.TemporaryDirectory() as folder, self._spied_upon(Path(folder)):
            with SandboxExecutor(max_children=self._slots + 4) as executor:
                own = executor._profile  # "none" has a shorter grace, and a launch may only tighten it
                executor._profile = replace(own, limits=replace(own.limits, grace_seconds=GRACE_SECONDS))
                self._fuzz(executor, seconds)
            groups = Path("/sys/fs/cgroup").rglob(f"sandbox-exec-*-{os.getpid()}-*")
            self._fail_if("cgroups are left: ", [str(group) for group in groups])
            if (Path(folder) / CANARY).exists():
                self._fail("the canary: something that a child sent was evaluated")
        return self.report

    def _fail_if(self, what: str, things: list[str]) -> None:
        if things:
            self._fail(what + ", ".join(things[:10]))

    # The run.

    def _fuzz(self, executor: SandboxExecutor, seconds: float) -> None:
        siblings = Siblings(executor, self._fail, self.report.pongs)
        warm_up = min(seconds / 5, WARM_UP_SECONDS)
        self._attack(executor, siblings, warm_up)
        before, descriptors, blocks = at_rest(), _descriptors(), sys.getallocatedblocks()
        self._attack(executor, siblings, seconds - warm_up)
        report = self.report
        report.growth, report.descriptors = at_rest() - before, _descriptors() - descriptors
        report.blocks = sys.getallocatedblocks() - blocks
        report.peak_growth = max(report.peak_growth - before, 0)
        siblings.stop()
        # Each thread's allocator keeps up to twice the largest block that it ever gave back, and bursts leave
        # half-empty pages: that comes to an end after some minutes. What leaks shows in the objects.
        if report.growth > (GROWTH_BYTES if warm_up == WARM_UP_SECONDS else SHORT_GROWTH_BYTES):
            self._fail(f"the host grew by {report.growth / 1e6:.1f} MB")
        if report.blocks > GROWTH_BLOCKS:
            self._fail(f"the host holds {report.blocks:,} objects more than before")
        if report.descriptors > 0:
            self._fail(f"{report.descriptors} descriptors more than before")
        self._fail_if("children are left: ", [repr(child) for child in executor.children()])

    def _attack(self, executor: SandboxExecutor, siblings: "Siblings", seconds: float) -> None:
        started = told = time.monotonic()
        report = self.report
        threads = [
            threading.Thread(target=self._slot, args=(executor, started + seconds), name=f"slot {number}")
            for number in range(self._slots)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(LOOK_SECONDS)
            siblings.look()
            report.peak_growth = max(report.peak_growth, resident())
            if (now := time.monotonic()) - told > TELL_SECONDS:
                told = now
                self._tell(
                    f"{report.seconds + now - started:5.0f} s: {report.frames:,} frames, {report.children:,} "
                    f"children, resident {resident() / 1e6:.1f} MB, {_descriptors()} descriptors, "
                    f"{len(report.failures)} failures"
                )
        report.seconds += time.monotonic() - started

    def _slot(self, executor: SandboxExecutor, until: float) -> None:
        while time.monotonic() < until and not self._enough.is_set():
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            script = scripts.script(self._seed, number, self._state, self._kind)
            try:
                self._play(executor, script)
            except BaseException:
                self._fail(f"{self._name(script)}: {traceback.format_exc()}")
                self._enough.set()

    def _play(self, executor: SandboxExecutor, script: scripts.Script) -> None:
        booting = script.state == scripts.BOOTING
        items = worker.items(script.number) if booting else DEFAULT_RESULT_ITEMS
        expected = Oracle(script, items).judge()
        grace = LADDER_SECONDS if script.ladder else GRACE_SECONDS
        released = threading.Event()
        child = executor.launch(
            Command(["/bin/false"]) if script.command else hostile.run,
            () if script.command else (self._seed, script.number, script.state, self._kind),
            limits=Limits(
                result_items=items,
                grace_seconds=grace,
                memory_bytes=MEMORY_BYTES if script.bounded else None,
                processes=PROCESSES if script.bounded else None,
            ),
        )
        if script.tools:  # of any signature, which no registry takes
            child._warden._hearing._grants = _tools(released)
        for number in range(script.steers):
            assert child.steer(f"steer {number}")
        if script.early_cancel:
            next(event for event in child.events() if event.kind in {"spawned", "ended"})
            time.sleep(script.number * 7 % 150 / 1000)
            child.cancel("early")
        if script.state == scripts.STOPPING:
            for event in child.events():
                if event.kind == "go":
                    child.cancel("as the script wants it")
                    break
        try:
            outcome = child.outcome(HANG_SECONDS)
        except TimeoutError:
            child.kill()
            self._fail(
                f"{self._name(script)}: no outcome after {HANG_SECONDS:g} s, expected {expected.endings}"
            )
            self._enough.set()
            return
        finally:
            released.set()
        with self._lock:
            heard = self._heard.pop(child.id, 0)
            self._count(script, expected, outcome, heard)

    def _count(self, script: scripts.Script, expected: Expectation, outcome, heard: int) -> None:
        ending = outcome.state.value, outcome.error.classification if outcome.error else None
        said = outcome.error.message if outcome.error else ""
        report = self.report
        report.children += 1
        report.frames += heard
        report.kinds[script.kind] += 1
        report.in_doubt += expected.heard is None
        # A child chooses the word for its failure: it is counted as one kind.
        report.outcomes[script.state, _short(*ending)] += 1
        if ending not in expected.endings:
            self._fail(
                f"{self._name(script)}: {ending} ({said}), expected {expected.endings}, {heard} frames heard"
            )
        elif expected.heard not in {None, heard}:
            self._fail(f"{self._name(script)}: {ending} ({said}), {heard} frames heard, not {expected.heard}")

    def _name(self, script: scripts.Script) -> str:
        options = "".join(
            f" --{name} {value}" for name, value in (("kind", self._kind), ("state", self._state)) if value
        )
        return (
            f"{script.state} {script.kind} (again with --seed {self._seed}{options} --only {script.number})"
        )

    def _fail(self, what: str) -> None:
        self.report.failures.append(what)
        self._tell(f"FAILURE: {what}")
        if len(self.report.failures) >= FAILURES:
            self._enough.set()

    # Looking in.

    @contextmanager
    def _spied_upon(self, folder: Path):
        """Counts frames, hears of exceptions and of what is loaded; the launcher starts the fuzzed worker."""
        for module in _LAZY:
            __import__(module)
        __import__("zoneinfo").ZoneInfo("Europe/Berlin")
        __import__("sandbox_exec.engine.values", fromlist=("x",))._known_zones()
        root, hooks, here = spawner._ROOT, (threading.excepthook, sys.excepthook), os.getcwd()
        on_frame = hearing.Hearing._on_frame
        heard = self._heard

        def counting(listener, frame):
            identity = listener._child.id
            heard[identity] = heard.get(identity, 0) + 1
            on_frame(listener, frame)

        def failed(*raised):
            self._fail(
                f"on {threading.current_thread().name}: {''.join(traceback.format_exception(*raised))}"
            )
            self._enough.set()

        _audit(self)
        spawner._ROOT = worker.make(folder / "worker", self._seed, self._kind)
        threading.excepthook = lambda args: failed(args.exc_type, args.exc_value, args.exc_traceback)
        sys.excepthook, hearing.Hearing._on_frame = failed, counting
        os.chdir(folder)  # where a canary would appear
        try:
            yield
        finally:
            os.chdir(here)
            spawner._ROOT, (threading.excepthook, sys.excepthook) = root, hooks
            hearing.Hearing._on_frame = on_frame
            _auditing.clear()

    def heard_of(self, event: str, args: tuple) -> None:
        """An audit event on some thread."""
        if not event.startswith(_ALARMING):
            return
        thread = threading._active.get(threading.get_ident())
        if thread is None or not thread.name.startswith(_READERS):
            return
        if event == "open" and str(args[0]).startswith(
            ("/proc/", "/sys/fs/cgroup", sys.prefix, sys.base_prefix, "/usr/share/zoneinfo")
        ):
            return
        self._fail(f"{thread.name} did {event} {args!r:.200}")


def _short(state: str, classification: str | None) -> str:
    return classification if classification in _WORDS else state


_WORDS = {
    *("PROTOCOL_VIOLATION", "CANCELLED", "LAUNCH_FAILED", "NO_RESULT", "SIGNAL"),
    *("RESULT_TOO_LARGE", "NOT_CONFINED"),
}


def _tools(released: threading.Event) -> dict[str, Tool]:
    def fails(**_):
        raise ValueError("no")

    return {
        "echo": Tool(lambda **args: args, 5.0),
        "fails": Tool(fails, 5.0),
        "stuck": Tool(lambda **_: released.wait(10.0), 30.0),
    }


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


_auditing: list[Fuzzer] = []


def _audit(fuzzer: Fuzzer) -> None:
    """An audit hook cannot be taken back: there is one per process, and it sleeps between runs."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(lambda event, args: _auditing[0].heard_of(event, args) if _auditing else None)
    _auditing.append(fuzzer)


_hooked: list[bool] = []
