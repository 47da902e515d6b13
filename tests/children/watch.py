"""What is checked of every child that a test starts, on the host's side.

Every child gets a mark of its own in its environment and in the name of its directory. What it forks keeps
the directory and what it executes keeps both, however often it forked twice or made a session of its own.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import uuid

import pytest

import sandbox_exec as sx

GRACE = 0.3  # of the ladder's rungs, where a test climbs it
PROMPT = 5.0  # seconds that nothing here takes unless it hangs

_unpickled = []


def _note_unpickling(event, arguments):
    if event == "pickle.find_class":
        _unpickled.append(arguments)


sys.addaudithook(_note_unpickling)


@contextlib.contextmanager
def unpickling_ourselves():
    """For the controls, which show what happens to those who do."""
    before = len(_unpickled)
    yield
    assert len(_unpickled) > before, "the check that nothing is unpickled sees nothing"
    del _unpickled[before:]


_reports = set()


def regression(report):
    """Names the public bug report that a test keeps from coming back; it becomes part of the test's id."""
    assert report not in _reports, f"{report} has its test already: parametrise that one"
    _reports.add(report)
    return pytest.mark.parametrize("report", [pytest.param(report, id=report)], indirect=True)


def limits(**others):
    return sx.Limits(**{"grace_seconds": GRACE, **others})


def ok():
    return 1


def alive_with(mark):
    """The processes that carry this mark, by pid, with their command lines. Zombies carry nothing."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            argv = _bytes(name, "cmdline")
            seen = argv + _bytes(name, "environ") + os.readlink(f"/proc/{name}/cwd").encode()
            if mark.encode() in seen:
                found[int(name)] = argv.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def end_with(mark):
    """Ends and returns those that are left, so that a test that fails leaves nothing burning."""
    left = alive_with(mark)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _bytes(pid, file):
    with open(f"/proc/{pid}/{file}", "rb") as opened:
        return opened.read()


def is_stopped(pid):
    return _bytes(pid, "stat").rpartition(b")")[2].split()[0] == b"T"


def wait_until(true, seconds=PROMPT):
    """Waits for something that is a matter of milliseconds; returns what it was in the end."""
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


def event_kinds(child, source="executor"):
    return [event.kind for event in child.events() if event.source == source]


def wait_for_event(child, kind):
    """Waits until the child or its executor has told this."""
    for event in child.events():
        if event.kind == kind:
            return event
    pytest.fail(f"{child} ended without {kind!r}: {child.outcome(0)}")


def signals_sent(child):
    """The rungs of the ladder that were climbed, as the events tell them."""
    return [
        event.data["signal"] for event in child.events() if event.kind == "ending" and "signal" in event.data
    ]


def words(outcome):
    """Everything that a caller gets to read about a child that did not succeed."""
    try:
        outcome.unwrap()
    except sx.ChildError as error:
        return f"{error}\n{error.__cause__ or ''}"
    return ""


def resident_bytes(field="VmRSS"):
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


class Growth:
    """How much more memory this process held at its peak, inside the block, than before it."""

    def __enter__(self):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts over from here
        self._before = resident_bytes()
        return self

    def __exit__(self, *_):
        self.bytes = resident_bytes("VmHWM") - self._before


class Case:
    """An executor and its children for one test. Leaving it checks what must hold after every case.

    Exactly one outcome, the same for every waiter and in time; nothing alive of the child's tree when the
    outcome is there; nothing unpickled here; the words name the cause; the executor launches on.
    What this process holds (descriptors, threads, children, files) is the leak fixture's part.
    """

    def __init__(self, profile, place, **options):
        self.profile = profile
        self.executor = sx.SandboxExecutor(profile=profile, **options)
        self.mark = f"case-{uuid.uuid4().hex}"
        self._place = place / self.mark
        self._place.mkdir()
        self._children = []
        self._unpickled = len(_unpickled)

    def launch(self, target, args=(), kwargs=None, *, waiters=2, env=None, **options):
        mark, directory = self._next_place()
        options = {"cwd": directory, "profile": self.profile, **options}
        env = {"MARK": mark, **(env or {})}
        child = self.executor.launch(target, args, kwargs, env=env, **options)
        return self._watch(child, mark, waiters)

    def submit(self, function, *args, waiters=2):
        """Submits a job and returns its future, whose child is checked as a launched one is."""
        mark, directory = self._next_place()
        with contextlib.chdir(directory):  # a job stands where its host does
            future = self.executor.submit(function, *args)
        self._watch(future.child, mark, waiters)
        return future

    def _next_place(self):
        mark = f"{self.mark}-{len(self._children)}."
        directory = self._place / mark
        directory.mkdir()
        return mark, directory

    def _watch(self, child, mark, waiters):
        seen = []
        threads = [
            threading.Thread(target=lambda: seen.append(child.outcome(50)), daemon=True)
            for _ in range(waiters)
        ]
        for thread in threads:
            thread.start()
        self._children.append((child, mark, threads, seen))
        return child

    def place_of(self, child):
        """The directory that the child started in."""
        return self._place / self.mark_of(child)

    def mark_of(self, child):
        return next(mark for known, mark, _, _ in self._children if known is child)

    def tree(self, child):
        """The processes of its tree now."""
        return alive_with(self.mark_of(child))

    def run(self, target, args=(), kwargs=None, *, within=PROMPT, **options):
        return self.settle(self.launch(target, args, kwargs, **options), within)

    def sh(self, script, **options):
        return self.run(sx.Command(["sh", "-c", script]), **options)

    def settle(self, child, within=PROMPT):
        """Waits for the outcome and checks it."""
        outcome = child.outcome(within)
        _, mark, threads, seen = next(record for record in self._children if record[0] is child)
        assert alive_with(mark) == {}
        for thread in threads:
            thread.join(PROMPT)
        assert len(seen) == len(threads)
        assert all(each is outcome for each in (*seen, child.outcome(0)))
        assert not child.alive
        assert child.state is outcome.state
        kinds = event_kinds(child)
        assert kinds.count("ended") == 1
        assert kinds[-1] == "ended"
        _check_words(outcome)
        return outcome

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                self._check()
        finally:
            self.executor.shutdown()
            left = end_with(self.mark)
        if kind is None:
            assert left == {}

    def _check(self):
        for child, _, _, _ in self._children:
            self.settle(child, 15)
        again = self.executor.launch(ok, profile=self.profile).outcome(15)
        assert (again.state, again.value, again.error) == (sx.SubagentState.SUCCEEDED, 1, None)
        assert _unpickled[self._unpickled :] == []


def _check_words(outcome):
    if outcome.state is sx.SubagentState.SUCCEEDED:
        assert outcome.error is None
        return
    read = words(outcome)
    assert outcome.value is None
    assert outcome.error.classification in read
    if outcome.error.classification == "SIGNAL":
        assert signal.Signals(outcome.exit.signal).name in read


def how(outcome):
    """State and classification, as the tables of endings have them."""
    return str(outcome.state), outcome.error.classification if outcome.error else None


SUCCEEDED = ("SUCCEEDED", None)
CANCELLED = ("CANCELLED", "CANCELLED")
BY_SIGNAL = ("INTERRUPTED", "SIGNAL")
NO_RESULT = ("INTERRUPTED", "NO_RESULT")
