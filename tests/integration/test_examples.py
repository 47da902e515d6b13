"""The examples, run as people run them. The survey's tests are beside those of the command line."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from children.watch import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BOARD = [sys.executable, EXAMPLES / "job_board.py"]
ENDINGS = {  # kind: status, attempts, first words of the detail
    "words": ("done", 1, "8"),
    "divide": ("failed", 1, "ZeroDivisionError: division by zero"),
    "crash": ("killed", 2, "SIGNAL: the process was ended by SIGSEGV"),
    "hang": ("timed out", 1, "TIMEOUT: the wall limit of 2 s"),
    "flaky": ("done", 2, "'well at attempt 2'"),
    "hoard": ("out of memory", 1, "MEMORY_LIMIT: memory_bytes=268,435,456"),
}


def run(*argv, returncode=0, **options):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False, **options)
    assert done.returncode == returncode, done.stdout + done.stderr
    return done


# Plugins ----------------------------------------------------------------------------------------------


def plugins(*arguments):
    """The table's lines by plugin, and the summary."""
    heading, *rows, summary = run(sys.executable, EXAMPLES / "plugin_host.py", *arguments).stdout.splitlines()
    assert heading.split()[:3] == ["plugin", "state", "classified"]
    return {row.split()[0]: row for row in rows}, summary


def test_the_plugin_host_tells_what_each_plugin_did():
    rows, summary = plugins()
    expected = {
        "crashes": r"INTERRUPTED +SIGNAL +the process was ended by SIGSEGV +\d+",
        "exits": r"FAILED +SystemExit +giving up on 'some words of text' +\d+",
        "fine": r"SUCCEEDED +- +returned \{'words': 4, 'upper': 'SOME WORDS OF TEXT'\} +\d+",
        "floods": r"SUCCEEDED +- +returned 'done'; printed 36,000,200 bytes, kept 65,536 +\d+",
        "hangs": r"FAILED +TIMEOUT +the wall limit of 2 s was reached \(SIGKILL\) +2\d\d\d",
        "raises": r"FAILED +ValueError +cannot make sense of 'some words of text' +\d+",
        "untravelling": r"FAILED +RESULT_NOT_SERIALIZABLE +.*objects of type built.* +\d+",
    }
    assert list(rows) == sorted(expected)
    wrong = [row for name, row in rows.items() if not re.fullmatch(f"{name} +{expected[name]}", row)]
    assert wrong == []
    assert summary == "7 plugins run; imported into this host: none."


def test_the_plugin_host_takes_a_folder(tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "one.py").write_text(
        f"import os\nopen({str(mark)!r}, 'w').write(str(os.getppid()))\ndef go(text): return text[::-1]\n"
    )
    (tmp_path / "broken.py").write_text("def go(text) return\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "noisy.py").write_text("def go(text): raise ValueError('\\x1b[2J\\n' + 'x' * 500)\n")
    rows, summary = plugins(tmp_path, "--function", "go", "--argument", "abc")
    assert "returned 'cba'" in rows["one"]
    assert mark.exists()
    assert "SyntaxError" in rows["broken"]
    assert "AttributeError" in rows["empty"]
    assert "'go'" in rows["empty"]
    assert "\x1b" not in rows["noisy"]
    assert len(rows["noisy"]) < 130
    assert summary.startswith("4 plugins run; imported into this host: none")
    done = run(sys.executable, EXAMPLES / "plugin_host.py", tmp_path / "none", returncode=2)
    assert "no plugins there" in done.stderr


# The job board ----------------------------------------------------------------------------------------


def read(path, query="SELECT kind, status, attempts, detail FROM jobs ORDER BY id"):
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as board:
        return board.execute(query).fetchall()


def unexpected(rows):
    """The rows that are not as their kind should end."""
    return [
        (kind, *told, detail)
        for kind, *told, detail in rows
        if tuple(told) != ENDINGS[kind][:2] or not detail.startswith(ENDINGS[kind][2])
    ]


def test_the_job_board_tells_every_ending():
    lines = run(*BOARD, "--jobs", "12").stdout.splitlines()
    rows = [
        re.fullmatch(r" *\d+  (\w+) +(\w+(?: \w+)*?)  +(\d)  (.*)", line).groups()
        for line in lines
        if not line.startswith("job ")
    ]
    assert [kind for kind, *_ in rows] == [*ENDINGS, *ENDINGS]
    assert unexpected([(kind, status, int(tries), detail) for kind, status, tries, detail in rows]) == []
    assert lines.count("job 3: killed, once more") == lines.count("job 3: killed") == 1


def test_two_workers_share_a_board(tmp_path):
    path = tmp_path / "board"
    with subprocess.Popen([*BOARD, "--board", path, "--jobs", "18"], stdout=-1, text=True) as first:
        assert wait_until(lambda: path.exists() and b"running" in path.read_bytes(), 20)
        second = run(*BOARD, "--board", path).stdout
        told = first.communicate(timeout=40)[0]
    assert unexpected(read(path)) == []
    ends = [line for line in (told + second).splitlines() if line.startswith("job ")]
    assert len(ends) == 18 + 6  # of each three crash and three flaky ones, once more
    assert not [line for line in ends if "lease lost" in line or "its worker is gone" in line]


def test_a_board_outlives_its_worker(tmp_path):
    path = tmp_path / "board"
    with subprocess.Popen([*BOARD, "--board", path, "--jobs", "12"], stdout=-1, text=True) as worker:
        assert worker.stdout.readline().startswith("job ")  # something is over, and others run
        worker.kill()
        worker.communicate()
    assert worker.returncode == -signal.SIGKILL
    claimed = read(path, "SELECT id FROM jobs WHERE status = 'running'")
    assert 1 <= len(claimed) <= 4
    told = run(*BOARD, "--board", path).stdout.splitlines()
    for (job,) in claimed:
        assert f"job {job}: its worker is gone, queued again" in told
    assert unexpected(read(path)) == []


def test_a_board_of_jobs_that_make_no_sense(tmp_path):
    path = tmp_path / "board"
    run(*BOARD, "--board", path, "--jobs", "1")
    with contextlib.closing(sqlite3.connect(path)) as board, board:
        jobs = [("nonsense", "{}"), ("words", "no JSON"), ("words", json.dumps({"text": ["a list"]}))]
        board.executemany("INSERT INTO jobs (kind, payload) VALUES (?, ?)", jobs)
    run(*BOARD, "--board", path)
    assert [row[1] for row in read(path)] == ["done", "failed", "failed", "failed"]
    assert [row[3].partition(":")[0] for row in read(path)[1:]] == [
        "LookupError",
        "JSONDecodeError",
        "AttributeError",
    ]
    assert "is there already" in run(*BOARD, "--board", path, "--jobs", "1", returncode=2).stderr
    assert "not there yet" in run(*BOARD, "--board", tmp_path / "none", returncode=2).stderr


# Fault injection --------------------------------------------------------------------------------------


@pytest.mark.timeout(150)
def test_the_fault_injection_suite_passes_and_can_fail(tmp_path):
    suite = (EXAMPLES / "test_fault_injection.py").read_text(encoding="utf-8")
    told = pytest_of(tmp_path, suite)
    for point in ("record half written-4", "acknowledged-1", "snapshot renamed-1"):
        assert f"test_a_store_that_is_killed_recovers[{point}] PASSED" in told, told
    assert re.search("=+ 15 passed in ", told), told
    broken = suite.replace("new.replace(self.snapshot)", "self.cut_log(0)", 1)
    assert broken != suite
    told = pytest_of(tmp_path, broken, "-k", "renamed", returncode=1)
    assert "AssertionError: lost or torn at once" in told


def pytest_of(folder, text, *arguments, returncode=0):
    """What pytest says of this suite, in a folder of its own, as of somebody's who copied it."""
    (folder / "test_copied.py").write_text(text, encoding="utf-8")
    argv = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--basetemp={folder / 'base'}"]
    argv += [*arguments, "test_copied.py"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return run(*argv, cwd=folder, returncode=returncode, env=environment).stdout
