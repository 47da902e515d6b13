"""What a long `sandboxed call` shows while it runs."""

import os
import pty
import subprocess
import sysconfig
import time
from pathlib import Path

import pytest

SANDBOXED = Path(sysconfig.get_path("scripts"), "sandboxed")
MODULE = """
import time
import sandbox_worker as sw

def work(seconds):
    until, step = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        step += 1
        sw.context().emit("step\\x1b[31m", number=step)
        time.sleep(0.05)
    return step > 0
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    return tmp_path


def call(folder, seconds, *options):
    argv = [SANDBOXED, "call", *options, "mine:work", str(seconds)]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=40, check=False)


def test_lines_for_those_who_read_them_later(folder):
    done = call(folder, 4)
    assert (done.returncode, done.stdout) == (0, "true\n")
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 6
    assert all(line.startswith("sandboxed: mine:work: ") for line in lines)
    assert " s, step" in lines[0]
    assert "number=" in lines[0]
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--json",)], ids=str)
def test_nothing_for_short_work_or_for_machines(folder, options):
    assert call(folder, 3 if options else 0.1, *options).stderr == ""


def test_a_live_line_on_a_terminal_that_is_gone_in_the_end(folder):
    mine, its = pty.openpty()
    argv = [SANDBOXED, "call", "mine:work", "3"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(argv, cwd=folder, stderr=its, stdout=subprocess.PIPE, env=environment) as process:
        os.close(its)
        shown, end = b"", time.monotonic() + 30
        while time.monotonic() < end:
            try:
                data = os.read(mine, 65_536)
            except OSError:  # its end is closed
                break
            shown += data
        assert process.stdout.read() == b"true\n"
    os.close(mine)
    assert process.returncode == 0
    assert b"mine:work: 2 s, step" in shown
    assert b"step\x1b" not in shown  # what the child says moves no cursor


def test_a_value_that_cannot_be_written_is_no_word_of_the_targets(tmp_path):
    with open(tmp_path / "status", "w+") as status, open("/dev/full", "w") as full:
        argv = [SANDBOXED, "call", "--status-fd", str(status.fileno()), "math:sqrt", "4"]
        done = subprocess.run(argv, stdout=full, pass_fds=[status.fileno()], timeout=30, check=False)
        assert done.returncode == 125
        status.seek(0)
        assert '"by": "sandboxed"' in status.read()
