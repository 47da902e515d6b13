"""Cgroups by doing: real children, each limit exceeded, with a control that exceeds it without a group."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from sandbox_exec.engine.cgroups import Cgroups, discover
from sandbox_exec.engine.hierarchies import LEAF, Files

MEMORY = 64 << 20
NOBODY = 65534


class Only(Files):
    """What a host would find that had the hierarchies of one version alone."""

    def __init__(self, version):
        self.kind = "cgroup2" if version == 2 else "cgroup"

    def read(self, path):
        text = super().read(path)
        if path == "/proc/self/mountinfo":
            text = "\n".join(line for line in text.splitlines() if f" - {self.kind} " in line)
        return text


@pytest.fixture(params=["found", "v1", "v2"])
def cgroups(request):
    """As this host has them, and each version alone."""
    if request.param == "found":
        return discover()
    return Cgroups(Only(int(request.param[1])))


@pytest.fixture
def group(cgroups):
    """Makes groups; kills and removes them after the test."""
    made = []

    def make(*needs, **limits):
        for kind in needs:
            if kind not in cgroups.gives:
                pytest.skip(f"no {kind} cgroup to be had here: {cgroups.missing[kind]}")
        made.append(cgroups.create(f"test-{len(made)}", **limits))
        assert made[-1].applied >= set(needs)
        return made[-1]

    yield make
    for each in made:
        each.kill()
        assert each.remove()
        for _, path in each._places:
            assert not os.path.exists(path)


@pytest.fixture
def child():
    """Starts a program that waits until told to go."""
    started = []

    def start(code, group=None):
        program = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"import os, sys, time; sys.stdin.readline()\n{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        if group is not None:
            group.join(program.pid)
        program.stdin.write("go\n")
        program.stdin.flush()
        return program

    yield start
    for program in started:
        program.kill()
        program.stdin.close()
        program.stdout.close()  # not read to its end: what the program started may hold it
        program.wait()


def gone(pid):
    """Dead, reaped or not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


BOMB = "kept = b'x' * (200 << 20)\nprint(len(kept))"
SHARED = """
with open(f"/dev/shm/{os.getpid()}", "wb", 0) as file:
    os.unlink(file.name)
    print(sum(file.write(bytes(1 << 20)) for _ in range(200)))
"""


@pytest.mark.parametrize("code", [BOMB, SHARED], ids=["heap", "tmpfs"])
def test_memory(group, child, code):
    with child(code) as control:
        assert control.stdout.read() == f"{200 << 20}\n"
    bounded = group("memory", memory_bytes=MEMORY)
    with child(code, bounded) as bomb:
        assert bomb.stdout.read() == ""
    assert bomb.returncode == -signal.SIGKILL
    assert bounded.oom_kills() in ({1} if bounded._place("memory")[0] == 1 else {1, 2})  # v2 counts it twice
    assert MEMORY * 0.9 < bounded.peak_memory_bytes() <= MEMORY


def test_memory_within_the_limit(group, child):
    bounded = group("memory", memory_bytes=MEMORY)
    with child("kept = b'x' * (20 << 20)\nprint(len(kept))", bounded) as modest:
        assert modest.stdout.read() == f"{20 << 20}\n"
    assert modest.returncode == 0
    assert bounded.oom_kills() == 0
    assert 20 << 20 < bounded.peak_memory_bytes() < MEMORY


def test_a_kill_that_is_not_for_memory(group, child):
    bounded = group("memory", memory_bytes=MEMORY)
    with child("time.sleep(60)", bounded) as victim:
        victim.kill()
    assert bounded.oom_kills() == 0


def test_the_tree_shares_one_limit(group, child):
    # Each of them is below it.
    code = "for _ in range(3): os.fork()\nkept = b'x' * (20 << 20)\ntime.sleep(1)"
    bounded = group("memory", memory_bytes=MEMORY)
    with child(code, bounded) as tree:
        wait_for(bounded.oom_kills)
        assert bounded.kill()
    assert tree.returncode is not None


@pytest.mark.parametrize(
    ("start", "what"),
    [
        ("os.fork() or time.sleep(60)", errno.EAGAIN),
        ("import _thread; _thread.start_new_thread(time.sleep, (60,))", "can't start new thread"),
    ],
    ids=["processes", "threads"],
)
def test_tasks(group, child, start, what):
    code = f"""
count, why = 1, None
try:
    for _ in range(12):
        {start}
        count += 1
except (OSError, RuntimeError) as error:
    why = getattr(error, "errno", None) or str(error)
print(__import__("json").dumps([count, why]), flush=True)
import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL); time.sleep(60)
"""
    free = group("pids", tasks=100)
    assert json.loads(child(code, free).stdout.readline()) == [13, None]
    assert free.kill()
    assert json.loads(child(code, group("pids", tasks=5)).stdout.readline()) == [5, what]


def test_cpu_of_all_that_ever_ran(group, child):
    code = """
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
if os.fork() == 0:  # nobody waits for the second: its time is in nobody's rusage
    if os.fork() == 0:
        spin(0.3)
        print("done", flush=True)
    os._exit(0)
os.wait()
spin(0.2)
"""
    counted = group("cpu")
    assert counted.cpu_seconds() == 0
    began = time.monotonic()
    with child(code, counted) as tree:
        assert tree.stdout.read() == "done\n"
    wait_for(lambda: not counted.pids())
    assert 0.5 <= counted.cpu_seconds() <= 2 * (time.monotonic() - began)  # two of them ran at once


DAEMONS = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
        os._exit(0)
    os.wait()
time.sleep(60)
"""


def test_kill_ends_daemons(group, child):
    bounded = group("cpu")
    tree = child(DAEMONS, bounded)
    daemons = {int(tree.stdout.readline()) for _ in range(5)}
    wait_for(lambda: bounded.pids() == {tree.pid, *daemons})
    tree.kill()  # the control
    tree.wait()
    assert bounded.pids() == daemons
    assert not bounded.remove(attempts=2)
    assert bounded.kill()
    assert all(map(gone, daemons))
    assert bounded.pids() == set()


def test_kill_ends_what_runs_away(group, child):
    # Every few hundred microseconds it is another process. The dead count until they are reaped: it retries.
    code = "while True:\n try:\n  if os.fork(): os._exit(0)\n except OSError: pass"
    bounded = group("pids", tasks=16)
    with child(code, bounded) as first:
        first.wait()
    for _ in range(3):
        wait_for(bounded.pids)
        time.sleep(0.01)
    assert bounded.kill()
    time.sleep(0.05)
    assert bounded.pids() == set()


def test_kill_ends_a_bomb(group, child):
    bounded = group("pids", tasks=100)
    child("while True:\n try: os.fork()\n except OSError: pass", bounded)
    wait_for(lambda: len(bounded.pids()) > 80)
    assert bounded.kill()


def test_kill_where_v2_has_no_kill(group, child, monkeypatch):
    # Before Linux 5.14.
    bounded = group("pids", tasks=100)
    write = Files.write

    def refusing(files, path, text):
        if path.endswith("/cgroup.kill"):
            raise FileNotFoundError(errno.ENOENT, "writing", path)
        write(files, path, text)

    monkeypatch.setattr(Files, "write", refusing)
    child("while True:\n try: os.fork()\n except OSError: pass", bounded)
    wait_for(lambda: len(bounded.pids()) > 80)
    assert bounded.kill()


def test_groups_that_the_child_made(group, child):
    bounded = group("cpu")
    tree = child("time.sleep(60)", bounded)
    for _, path in bounded._places:
        os.mkdir(f"{path}/inner")
        Files().write(f"{path}/inner/cgroup.procs", str(tree.pid))
    assert bounded.pids() == {tree.pid}
    assert bounded.kill()
    assert tree.wait() == -signal.SIGKILL
    assert bounded.remove()


def test_join_of_one_that_is_gone(group, child):
    bounded = group("cpu")
    with child("") as quick:
        quick.wait()
    with pytest.raises(ProcessLookupError, match=r"writing .*cgroup\.procs"):
        bounded.join(quick.pid)


def become(uid):
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def in_a_copy(work, uid=0):
    """What `work` gives in a forked copy of this process, as another user."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a thread watches the test's time
        pid = os.fork()
    if pid == 0:
        try:
            become(uid)
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def test_what_a_dead_host_left_is_removed_by_the_next(cgroups, group):
    group("cpu")
    kept = group("cpu")
    left = in_a_copy(lambda: [path for _, path in Cgroups(Files()).create("left")._places])
    assert all(map(os.path.isdir, left))
    Cgroups(Files())
    assert not any(map(os.path.exists, left))
    assert all(os.path.isdir(path) for _, path in kept._places)


def test_a_copy_finds_out_for_itself():
    here = discover()
    assert discover() is here
    assert in_a_copy(lambda: discover() is not here)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_user_is_told_why():
    def work():
        cgroups = Cgroups(Files())
        return [sorted(cgroups.gives), cgroups.missing]

    gives, missing = in_a_copy(work, NOBODY)
    assert gives == []
    assert all(
        "Permission denied" in why or "Read-only" in why or "mounted" in why for why in missing.values()
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="delegates a group, as systemd does")
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside a stranger"])
@pytest.mark.parametrize("uid", [0, NOBODY], ids=["root", "user"])
def test_v2_in_a_delegated_group(uid, alone, child, monkeypatch):
    cgroups = Cgroups(Only(2))
    if "memory" not in cgroups.gives:
        pytest.skip(f"no memory controller on v2 here: {cgroups.missing['memory']}")
    monkeypatch.setattr(Files, "is_delegated", lambda *_: True)  # nobody has to tell systemd
    outer = cgroups.create("delegated")
    (_, folder), *_ = outer._places
    for name in ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"):
        os.chown(f"{folder}/{name}", uid, uid)
    stranger = None if alone else child("time.sleep(60)", outer)

    def work():
        outer.join(os.getpid())  # from outside only root may
        become(uid)
        found = Cgroups(Files())
        made = found.create("inner", memory_bytes=MEMORY, tasks=3)
        sleeper = subprocess.Popen(["sleep", "60"])
        made.join(sleeper.pid)
        inside = made.pids() == {sleeper.pid}
        ended = made.kill() and sleeper.wait() == -signal.SIGKILL
        with open("/proc/self/cgroup") as file:
            moved = LEAF in file.read()
        return sorted(found.gives), found.missing, inside, ended, made.remove(), moved

    try:
        gives, missing, inside, ended, removed, moved = in_a_copy(work)
    finally:
        outer.kill()
        assert outer.remove()
    assert (inside, ended, removed) == (True, True, True)
    if alone:
        assert (gives, missing, moved) == (["cpu", "memory", "pids"], {}, True)
    else:
        assert (gives, moved) == (["cpu"], False)
        assert f"process {stranger.pid} is in the host's group" in missing["memory"]
