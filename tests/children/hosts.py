"""Programs that use an executor: for what a test cannot do to the interpreter that it runs in.

``python -m children.hosts NAME ARGUMENT...`` runs one; the last line that it prints is JSON. `run` starts
one from a test, waits for it and returns what it told.
"""

import collections
import contextlib
import faulthandler
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import sandbox_exec as sx
import sandbox_worker
from children import faults, greedy, stubborn

TESTS = Path(__file__).parents[1]
GRACE = 0.3


def command(name, *arguments):
    return [
        sys.executable,
        "-W",
        "always::ResourceWarning",
        "-m",
        "children.hosts",
        name,
        *map(str, arguments),
    ]


def environment():
    places = [TESTS, Path(sx.__file__).parents[1], Path(sandbox_worker.__file__).parents[1]]
    places += [entry for entry in sys.path if entry.endswith("-packages")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "PYTHONDONTWRITEBYTECODE": "1"}


def run(name, *arguments, seconds=20, returncode=0, **options):
    """Runs a host to its end and returns what it told on its last line."""
    argv = options.pop("argv", command(name, *arguments))
    done = subprocess.run(
        argv,
        env=environment(),
        stdin=-3,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        **options,
    )
    assert done.returncode == returncode, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    assert "ResourceWarning" not in done.stderr, done.stderr
    assert "Exception" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None


@contextlib.contextmanager
def started(name, *arguments):
    """Starts a host, waits for its first line, and yields the process and that line."""
    with subprocess.Popen(
        command(name, *arguments), env=environment(), stdin=-3, stdout=-1, text=True
    ) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def tell(**what):
    print(json.dumps(what), flush=True)


def how(outcome):
    return [
        str(outcome.state),
        outcome.error.classification if outcome.error else None,
        outcome.exit.code,
        outcome.exit.signal,
        outcome.exit.cause,
    ]


def limits(**others):
    return sx.Limits(grace_seconds=GRACE, **others)


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
    return found


def settled():
    """The descriptors once they stay the same: a child's are closed a moment after its outcome is there."""
    found, same = descriptors(), 0
    while same < 5:
        time.sleep(0.01)
        before, found = found, descriptors()
        same = same + 1 if found == before else 0
    return found


# Hosts ----------------------------------------------------------------------------------------------


def launch_a_thousand(profile):
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    before = descriptors()
    endings = collections.Counter()
    with sx.SandboxExecutor(profile) as executor:
        assert executor.launch(faults.give, (1,)).outcome(10).value == 1
        warm = settled()
        for number in range(37):  # 27 each: 1 to 32 at a time, and some that queue
            children = [executor.launch(faults.give, (number,)) for _ in range(27)]
            endings.update(str(child.outcome(20).state) for child in children)
        done = settled()
        endings.update(str(executor.launch(faults.give, (1,)).outcome(10).state) for _ in range(1))
    tell(
        **{
            "descriptors before": before,
            "descriptors after": settled(),
            "descriptors when warm": warm,
            "descriptors when done": done,
            "endings": endings,
        }
    )


def have_statuses_stolen(profile, way):
    """Somebody in the host takes every status before we can."""
    if way == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    else:
        threading.Thread(target=_steal, daemon=True).start()
    told = []
    with sx.SandboxExecutor(profile) as executor:
        for _ in range(10):
            for target, arguments in (
                (faults.kill_self, (signal.SIGKILL,)),
                (faults.abort, ()),
                (faults.leave_at_once, (3,)),
                (faults.give, (1,)),
                (sx.Command(["sh", "-c", "exit 5"]), ()),
                (sx.Command(["sh", "-c", "kill -15 $$"]), ()),
            ):
                told.append(how(executor.launch(target, arguments, limits=limits()).outcome(10)))
        child = executor.launch(stubborn.in_loop, limits=limits())
        next(event for event in child.events() if event.kind == "here")
        child.kill()
        told.append(how(child.outcome(10)))
    tell(told=told)


def _steal():
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def hold_children(profile, place, kinds):
    """Starts children of these kinds, tells their pids, and waits to be killed."""
    executor = sx.SandboxExecutor(profile)
    targets = {
        "loop": (stubborn.in_loop, ()),
        "deaf": (stubborn.deaf_in_c, ()),
        "sleep": (stubborn.in_sleep, ()),
        "shell": (stubborn.in_shell, ()),
        "program": (stubborn.in_subprocess, ()),
        "stopped": (stubborn.stopped, ()),
    }
    children = []
    for kind in kinds.split(","):
        target, arguments = targets[kind]
        children.append(executor.launch(target, arguments, cwd=place))
    for child in children:
        next(event for event in child.events() if event.kind == "here")
    tell(pids=[child.pid for child in children])
    time.sleep(60)


def end_without_shutdown(profile, place, way):
    """Ends as a program does that never heard of shutdown()."""
    executor = sx.SandboxExecutor(profile)
    for target in (stubborn.in_loop, stubborn.in_sleep, stubborn.in_shell):
        child = executor.launch(target, cwd=place, limits=limits())
        next(event for event in child.events() if event.kind == "here")
    executor.launch(stubborn.in_sleep, cwd=place, limits=limits())  # still being born
    tell(pid=child.pid)
    match way:
        case "exit":
            sys.exit(3)
        case "exception":
            raise LookupError("of the program's own")
        case "with":
            with executor:
                raise LookupError("of the program's own")


def fork_with_children(profile):
    """The host forks while it has a child, and the copy lives on."""
    executor = sx.SandboxExecutor(profile)
    child = executor.launch(faults.say_partial, (1, time.sleep, 600))
    next(event for event in child.events() if event.kind == "said")
    future = executor.submit(time.sleep, 0.5)
    ours, theirs = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(ours)
        with open(theirs, "w") as out:
            print(_in_the_copy(executor, profile, future), file=out)
        os.closerange(0, 3)
        time.sleep(60)
        os._exit(0)
    os.close(theirs)
    with open(ours) as said:
        from_copy = said.readline().strip()
    began = time.monotonic()
    os.kill(child.pid, signal.SIGKILL)
    outcome = child.outcome(10)
    delay = time.monotonic() - began
    after = executor.launch(faults.give, (2,)).outcome(10)
    executor.shutdown()
    os.kill(copy, signal.SIGKILL)
    os.waitpid(copy, 0)
    tell(copy=from_copy, ending=how(outcome), delay=delay, after=after.value)


def _in_the_copy(executor, profile, future):
    try:
        future.result(5)
    except sx.ExecutorClosed:
        pass
    else:
        return "the future"
    try:
        executor.launch(faults.give, (1,))
    except sx.ExecutorClosed as error:
        refused = "refused" if "fork" in str(error) else str(error)
    else:
        refused = "taken"
    executor.shutdown()
    with sx.SandboxExecutor(profile) as own:
        return f"{refused}, own gives {own.launch(faults.give, (7,)).outcome(10).value}"


def run_out_of_descriptors(profile, when):
    """Launches with only a few descriptors left, from none to plenty."""
    endings = []
    lowest = max(map(int, os.listdir("/proc/self/fd"))) + 1
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    before = descriptors()
    for left in range(24):
        executor = sx.SandboxExecutor(profile, max_children=8)
        if when != "cold":
            executor.launch(faults.give, (1,)).outcome(10)
            settled()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 60, hard))
        filler = []
        take_all(filler)
        for fd in filler[len(filler) - left :]:
            os.close(fd)
        del filler[len(filler) - left :]
        done = threading.Event()
        rival = threading.Thread(target=compete, args=(filler, done))
        if when == "contested":
            rival.start()
        try:
            endings.append(how(executor.launch(faults.give, (1,)).outcome(10))[:2])
        except sx.LaunchError:
            endings.append(["LaunchError", None])
        finally:
            done.set()
            if rival.ident:
                rival.join()
            for fd in filler:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        again = executor.launch(faults.give, (2,)).outcome(10)
        assert again.value == 2, again
        executor.shutdown()
    tell(endings=endings, before=before, after=settled())


def take_all(kept):
    with contextlib.suppress(OSError):
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))


def compete(kept, done):
    """Takes whatever somebody else gives back."""
    while not done.is_set():
        take_all(kept)


def start_too_many(profile, place):
    """What processes and threads bind, for a user whom RLIMIT_NPROC binds at all."""
    with sx.SandboxExecutor(profile) as executor:

        def told(target, count, **bounds):
            outcome = executor.launch(target, (count,), limits=limits(**bounds), cwd=place).outcome(20)
            return [*how(outcome)[:2], outcome.exit.cause, outcome.value]

        few = told(greedy.start_threads, 4, threads=8)
        many = told(greedy.start_threads, 30, threads=8)
        few_processes = told(greedy.start_processes, 4, processes=8)
        many_processes = told(greedy.start_processes, 30, processes=8)
        # Another child's threads are none of this one's.
        busy = [executor.launch(stubborn.in_sleep, limits=limits(threads=8), cwd=place) for _ in range(12)]
        for child in busy:
            next(event for event in child.events() if event.kind == "here")
        beside_others = told(greedy.start_threads, 4, threads=8)
        degraded = busy[0].degraded
        for child in busy:
            child.kill()
    tell(
        uid=os.getuid(),
        degraded=degraded,
        few=few,
        many=many,
        few_processes=few_processes,
        many_processes=many_processes,
        beside_others=beside_others,
    )


if __name__ == "__main__":
    faulthandler.dump_traceback_later(50, exit=True)
    globals()[sys.argv[1]](*sys.argv[2:])
