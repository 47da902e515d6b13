"""Programs that use an executor: for what a test cannot do to the interpreter that it runs in.

``python -m children.hosts NAME ARGUMENT...`` runs one; the last line that it prints is JSON. `run` starts
one from a test, waits for it and returns what it told.
"""

import asyncio
import collections
import contextlib
import faulthandler
import fcntl
import json
import logging
import os
import pty
import resource
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import sandbox_exec as sx
import sandbox_worker
from children import faults, greedy, stubborn, watch
from children import started as targets

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
def started(name, *arguments, **options):
    """Starts a host, waits for its first line, and yields the process and that line."""
    options = {"stdin": -3, **options}
    with subprocess.Popen(
        command(name, *arguments), env=environment(), stdout=-1, text=True, **options
    ) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


class Terminal:
    """What a person at the terminal of a program sees and does."""

    def __init__(self, process, fd):
        self._process, self._fd = process, fd

    def type(self, keys):
        os.write(self._fd, keys)

    def read_until(self, expected):
        shown = b""
        while expected not in shown:
            shown += os.read(self._fd, 65_536)
        return shown

    def read_to_the_end(self):
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while data := os.read(self._fd, 65_536):
                shown += data
        self._process.wait(20)
        return shown

    @property
    def returncode(self):
        return self._process.returncode


@contextlib.contextmanager
def on_a_terminal(name, *arguments):
    """Starts a host as the foreground job of a terminal of its own; it calls `take_terminal`."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    with subprocess.Popen(
        command(name, *arguments),
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


def take_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it


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
    if way == "sigterm handled":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
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
        case "exit in with":
            with executor:
                sys.exit(3)
        case "sigterm":
            time.sleep(60)
        case "sigterm handled":
            with executor:
                time.sleep(60)
        case "thread":
            thread = threading.Thread(target=_fail, name="of its own")
            thread.start()
            thread.join()


def _fail():
    raise LookupError("of the program's own")


def compute_until_interrupted(profile, place, way):
    """Four children compute and four wait for a slot when the interrupt comes."""
    take_terminal()
    os.chdir(place)
    interrupts = 0
    executor = sx.SandboxExecutor(profile, max_children=4)
    children = []

    def all_here():
        for child in children[:4]:
            next(event for event in child.events() if event.kind == "here")
        sessions = [os.getsid(child.pid) for child in children[:4]]
        print("ready", flush=True)
        return sum(session not in {0, os.getsid(0)} for session in sessions)

    async def wait():
        await asyncio.gather(*children)

    own_sessions = None
    try:
        with executor:
            if way == "map":
                results = executor.map(stubborn.in_loop_telling_of_interrupts, range(8))
                children += executor.children()
            else:
                children += [
                    executor.launch(stubborn.in_loop_telling_of_interrupts, (number,), limits=limits())
                    for number in range(8)
                ]
            own_sessions = all_here()
            match way:
                case "outcome":
                    children[0].outcome()
                case "map":
                    list(results)
                case "await":
                    asyncio.run(wait())
    except KeyboardInterrupt:
        interrupts += 1
    try:
        time.sleep(0.2)
    except KeyboardInterrupt:
        interrupts += 1
    with sx.SandboxExecutor(profile) as another:
        again = another.launch(faults.give, (1,)).outcome(10).value
    tell(
        **{
            "interrupts": interrupts,
            "sessions of their own": own_sessions,
            "started": sum(child.pid is not None for child in children),
            "endings": [how(child.outcome(0))[:2] for child in children],
            "again": again,
        }
    )


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


def launch_among_locks(profile, place):
    """Launches while other threads are in print and in logging nearly all the time."""
    forks, done, lines = [], threading.Event(), [0] * 8
    sys.setswitchinterval(0.0002)  # ours are to have their turn too
    os.register_at_fork(before=lambda: forks.append(1))
    logging.basicConfig(format="%(levelname)s:%(name)s:%(message)s")
    nowhere, standard = os.open(os.devnull, os.O_WRONLY), [os.dup(1), os.dup(2)]
    for fd in (1, 2):
        os.dup2(nowhere, fd)

    def log(number):
        while not done.is_set():
            logging.getLogger().warning("line %s of thread %s", lines[number], number)
            print("line", lines[number], flush=True)
            lines[number] += 1

    threads = [threading.Thread(target=log, args=(number,)) for number in range(len(lines))]
    for thread in threads:
        thread.start()
    endings, output, errors = (collections.Counter() for _ in range(3))
    with watch.Case(profile, Path(place)) as case:
        try:
            for _ in range(10):
                children = [case.launch(faults.log_and_print, waiters=0) for _ in range(30)]
                for child in children:
                    outcome = child.outcome(50)
                    endings[f"{outcome.state} {outcome.value}"] += 1
                    output[outcome.stdout.text] += 1
                    errors[outcome.stderr.text] += 1
        finally:
            done.set()
            for thread in threads:
                thread.join()
            for fd, kept in zip((1, 2), standard, strict=True):
                os.dup2(kept, fd)
    tell(
        **{
            "endings": endings,
            "output": output,
            "errors": errors,
            "forks": len(forks),
            "lines of each thread": min(lines),
        }
    )


def read_input(profile, place):
    """Children that read what this program never gets to the end of."""
    with watch.Case(profile, Path(place)) as case:
        outcomes = {
            "cat": case.run(sx.Command(["cat"])),
            "shell": case.sh("read line || echo end"),
            "input": case.run(targets.reads_a_line),
            "read": case.run(targets.reads_all),
        }
    tell(**{name: [*watch.how(each), each.value, each.stdout.text] for name, each in outcomes.items()})


if __name__ == "__main__":
    faulthandler.dump_traceback_later(50, exit=True)
    globals()[sys.argv[1]](*sys.argv[2:])
