"""The host's threads and locks are its own; a child's threads do not keep it."""

import sys

import pytest

from children import hosts, stubborn, watch
from children.watch import PROMPT, SUCCEEDED, how, regression


@regression("python/cpython#91776")
def test_no_lock_of_the_hosts_reaches_a_child(report, profile, tmp_path):
    told = hosts.run("launch_among_locks", profile, tmp_path, seconds=55)
    assert told["endings"] == {"SUCCEEDED 1": 300}
    assert told["output"] == {"y\n": 300}
    assert told["errors"] == {"WARNING:root:x\n": 300}
    assert told["lines of each thread"] > 100
    assert told["forks"] == 0


PLACES = {
    "in a thread": """
import sandbox_exec as sx
def use():
    child = sx.SandboxExecutor(PROFILE).launch(ok)
    outcomes.append(child.outcome(20))
in_a_thread(use)
""",
    "with in a thread": """
import sandbox_exec as sx
def use():
    with sx.SandboxExecutor(PROFILE) as executor:
        outcomes.append(executor.launch(ok).outcome(20))
in_a_thread(use)
""",
    "import in a thread": """
def use():
    import sandbox_exec as sx
    with sx.SandboxExecutor(PROFILE) as executor:
        outcomes.append(executor.launch(ok, limits=sx.Limits(wall_seconds=20)).outcome(20))
        child = executor.launch(time.sleep, (60,))
        child.cancel()
        child.outcome(20)
in_a_thread(use)
""",
    "to_thread": """
import asyncio
import sandbox_exec as sx
async def main():
    with sx.SandboxExecutor(PROFILE) as executor:
        child = await asyncio.to_thread(executor.launch, ok)
        outcomes.append(await asyncio.to_thread(child.outcome, 20))
asyncio.run(main())
""",
    "import in the main thread": """
import sandbox_exec as sx
with sx.SandboxExecutor(PROFILE) as executor:
    outcomes.append(executor.launch(ok).outcome(20))
    assert executor.submit(ok).result(20) == 1
""",
}
PROGRAM = """
import json, signal, threading, time
def handlers():
    with open("/proc/self/status") as status:
        masks = [line.split() for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    return masks, [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]
def in_a_thread(use):
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
def ok():
    return 1
outcomes = []
in_a_thread(ok)  # with the first thread the C library installs a handler of its own
before = handlers()
USE
after = handlers()
wakeup = signal.set_wakeup_fd(-1)
told = [[str(outcome.state), outcome.error, outcome.value] for outcome in outcomes]
print(json.dumps({"same": before == after, "wakeup": wakeup, "outcomes": told}))
"""


@pytest.mark.parametrize("place", PLACES)
@regression("huggingface/smolagents#1338")
def test_any_thread_may_launch_and_no_signal_handler_is_installed(report, profile, place):
    program = PROGRAM.replace("USE", PLACES[place]).replace("PROFILE", repr(profile))
    told = hosts.run(place, argv=[sys.executable, "-c", program])
    assert told == {"same": True, "wakeup": -1, "outcomes": [["SUCCEEDED", None, 1]]}


@pytest.mark.parametrize(
    "left", ["thread", "pool of threads", "process", "pool of processes", "program", "exit handler"]
)
@regression("rwth-i6/returnn#1497")
def test_what_a_child_leaves_running_does_not_keep_it(case, left):
    child = case.launch(stubborn.leave_running, (left,))
    outcome = case.settle(child, within=PROMPT)
    assert (how(outcome), outcome.value) == (SUCCEEDED, 1)
    assert outcome.usage.wall_seconds < PROMPT
    assert watch.event_kinds(child, "child") == ["left"]
