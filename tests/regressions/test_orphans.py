"""What a child started ends with it, wherever it went."""

import os
import signal
import subprocess
import time

import pytest

from children import stubborn, watch
from children.watch import CANCELLED, SUCCEEDED, Case, alive_with, how, regression, wait_until


@regression("anthropics/claude-code#93794")
def test_background_jobs_end_with_their_shell(case):
    script = "for i in 1 2 3; do yes >/dev/null & done; exit 0"
    assert how(case.sh(script)) == SUCCEEDED

    # The same shell, just run: its jobs burn on.
    subprocess.run(["sh", "-c", script], check=True, env={**os.environ, "MARK": case.mark})
    assert len(watch.end_with(case.mark)) == 3
    assert wait_until(lambda: not alive_with(case.mark))


def start_and_sleep(way):
    match way:
        case "session" | "stopped":
            sleep = subprocess.Popen(["sleep", "600"], start_new_session=True)
            if way == "stopped":
                os.kill(sleep.pid, signal.SIGSTOP)
        case "forked twice":
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                os.closerange(0, 64)
                os.execvp("sleep", ["sleep", "600"])
            os.wait()
        case "deaf":
            script = "trap '' TERM HUP INT; sleep 600; sleep 600"
            subprocess.Popen(["sh", "-c", script], start_new_session=True)
    time.sleep(600)


@pytest.mark.parametrize("way", ["session", "forked twice", "stopped", "deaf", "control"])
@regression("stdlib#start_new_session")
def test_a_session_of_its_own_does_not_save_a_grandchild(case, way):
    if way == "control":
        environment = {**os.environ, "MARK": case.mark}
        script = "setsid sleep 600 & wait"
        naive = subprocess.Popen(["sh", "-c", script], start_new_session=True, env=environment)
        assert wait_until(lambda: "sleep 600" in alive_with(case.mark).values())
        os.killpg(naive.pid, signal.SIGKILL)
        naive.wait()
        assert list(watch.end_with(case.mark).values()) == ["sleep 600"]
        assert wait_until(lambda: not alive_with(case.mark))
        return
    child = case.launch(start_and_sleep, (way,))
    assert wait_until(lambda: "sleep 600" in case.tree(child).values())
    child.cancel()
    assert how(case.settle(child)) == CANCELLED


@regression("multikernel/sandlock#229")
def test_no_slot_is_lost(report, profile, tmp_path):
    with Case(profile, tmp_path, max_children=50) as case:
        children = []
        for number in range(300):
            child = case.launch((watch.ok, stubborn.in_sleep, stubborn.in_sleep)[number % 3], waiters=1)
            children.append(child)
            if number % 3 == 1:
                child.cancel()
            elif number % 3 == 2:
                child.kill()
        endings = [how(case.settle(child, within=50)) for child in children]
        assert endings == [SUCCEEDED, CANCELLED, CANCELLED] * 100
        assert case.executor.children() == []
        counts = case.executor.statistics()
        assert (counts["live"], counts["queued"], counts["started"]) == (0, 0, 300)
        assert counts["ended"] == {"SUCCEEDED": 100, "CANCELLED": 200}
