"""The leak fixture finds what it is for: each kind of thing, left behind, is named."""

import _thread
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import leaks


@pytest.fixture
def missing(tmp_path):
    """What the fixture would report now, after a short grace."""
    before = leaks.take_stock(tmp_path)
    return lambda: leaks.wait_for_same(before, tmp_path, grace=0.05)


def test_nothing_left_nothing_said(missing):
    assert missing() == []


def test_a_descriptor(missing):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lines = missing()
    assert len(lines) == 2
    assert all(line.startswith("descriptors: left behind: ") and "-> socket:[" in line for line in lines)
    assert missing() == []


def test_a_descriptor_that_was_somebody_elses(tmp_path):
    first, second = os.pipe()
    before = leaks.take_stock(tmp_path)
    os.close(second)
    lines = leaks.wait_for_same(before, tmp_path, grace=0.05)
    os.close(first)
    assert [line.split(" -> ")[0] for line in lines] == [f"descriptors: lost: {second}"]


@pytest.mark.parametrize(
    "start",
    [
        lambda run: threading.Thread(target=run, name="stray").start(),
        lambda run: _thread.start_new_thread(run, ()),
    ],
    ids=["known", "unknown"],
)
def test_a_thread(missing, start, request):
    end = threading.Event()
    start(end.wait)
    lines = missing()
    end.set()
    assert len(lines) == 1
    assert ("(stray)" if "unknown" not in request.node.name else "(not of threading: ") in lines[0]


def test_a_child_and_its_child(missing):
    sleep = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", sleep], stdin=subprocess.PIPE) as child:
        while len(missing()) < 3:  # child, grandchild, the pipe
            pass
        lines = missing()
        child.stdin.close()
        child.wait()
    assert any(f"process {child.pid} " in line for line in lines)
    assert any(f"parent {child.pid})" in line for line in lines)


def test_a_zombie(missing):
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    lines = missing()
    child.wait()
    assert len(lines) == 1
    assert "(state Z, " in lines[0]


def test_shared_memory(missing):
    left = Path("/dev/shm", f"leak-test-{os.getpid()}")
    left.touch()
    lines = missing()
    left.unlink()
    assert lines == [f"shared memory: left behind: {left}"]


def test_a_temporary_file(missing, tmp_path):
    left = tmp_path / "scratch"
    left.mkdir()
    assert missing() == [f"temporary: left behind: {left}"]


def test_what_ends_in_time_is_no_leak(tmp_path):
    before = leaks.take_stock(tmp_path)
    timer = threading.Timer(0.1, lambda: None)
    timer.start()
    assert leaks.wait_for_same(before, tmp_path) == []


def test_the_fixture_fails_the_test_that_leaks(tmp_path):
    tests = Path(__file__).parents[1]
    (tmp_path / "conftest.py").write_text((tests / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        "import os, tempfile, leaks\n"
        "leaks.GRACE_SECONDS = 0.1\n"
        "def test_leaks():\n    os.pipe()\n    tempfile.mkdtemp()\n"
        "def test_does_not():\n    tempfile.TemporaryFile().close()\n"
    )
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {tests}\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            f"--basetemp={tmp_path / 'base'}",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "CI"},  # it repeats all there
    )
    assert "2 passed, 1 error" in done.stdout
    assert "ERROR at teardown of test_leaks" in done.stdout
    assert done.stdout.count("descriptors: left behind: ") == 2
    assert done.stdout.count("temporary: left behind: ") == 1
