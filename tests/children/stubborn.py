"""Ways to take a cancel, and steers."""

import atexit
import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from multiprocessing import shared_memory

import sandbox_worker as sw


def at_boundaries():
    """The polite one."""
    ctx = sw.context()
    ctx.emit("here")
    while True:
        ctx.boundary()
        time.sleep(0.005)


def with_last_words():
    ctx = sw.context()
    try:
        ctx.emit("here")
        time.sleep(600)
    finally:
        ctx.partial("cleaned up")
        with open("cleaned", "w") as file:
            file.write("up")


def in_sleep():
    sw.context().emit("here")
    time.sleep(600)


def in_loop():
    sw.context().emit("here")
    while True:
        pass


def in_loop_telling_of_interrupts(number):
    signal.signal(signal.SIGINT, lambda *_: touch(f"interrupted-{number}"))
    in_loop()


def swallow():
    try:
        sw.context().emit("here")
        time.sleep(600)
    except sw.Cancelled:
        return "finished all the same"


def swallow_and_go_on():
    """SIGTERM is not swallowed: the second rung ends it."""
    seconds = 0
    while True:
        try:
            if not seconds:
                seconds = 600
                sw.context().emit("here")
            time.sleep(seconds)
        except BaseException:
            pass


def deaf():
    """The report's own: handles SIGTERM itself and swallows every exception."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    swallow_and_go_on()


def deaf_in_c():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sw.context().emit("here")
    collections.deque(itertools.repeat(0), maxlen=0)


def finish_on_sigterm():
    """Takes the second rung as the moment to come to an end."""

    def end(*_):
        raise TimeoutError

    signal.signal(signal.SIGURG, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    try:
        sw.context().emit("here")
        time.sleep(600)
    except TimeoutError:
        return "finished on SIGTERM"


def stopped():
    sw.context().emit("here")
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def in_subprocess():
    sw.context().emit("here")
    subprocess.run(["sleep", "600"], check=True)


def in_shell():
    sw.context().emit("here")
    os.system("sleep 600; sleep 600")


def cancelled_of_its_own_accord():
    raise sw.Cancelled


def leave_running(what):
    """Returns at once; what it leaves, an interpreter would wait for at its exit."""
    match what:
        case "thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
        case "pool of threads":
            concurrent.futures.ThreadPoolExecutor(2).submit(time.sleep, 600)
        case "process":
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
        case "pool of processes":
            processes = multiprocessing.get_context("fork")
            concurrent.futures.ProcessPoolExecutor(2, processes).submit(time.sleep, 600)
        case "program":
            subprocess.Popen(["sleep", "600"])
        case "exit handler":
            atexit.register(time.sleep, 600)
    sw.context().emit("left")
    return 1


def leave_files(shared, then_die):
    """Shared memory, a temporary file, and one where it stands; then it has no time to tidy up."""
    with contextlib.suppress(OSError):
        shared_memory.SharedMemory(shared, create=True, size=10**7)
    path = tempfile.mktemp()
    for name in (path, "own"):
        with open(name, "w") as file:
            file.write("x")
    sw.context().emit("here", name=os.path.basename(path))
    if then_die:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


# Steers.


def collect_steers(until):
    """Reads steers at its boundaries until one says so."""
    ctx = sw.context()
    ctx.emit("here")
    seen = []
    while until not in seen:
        seen += ctx.boundary()
        time.sleep(0.001)
    return seen


def listen_between_work(seconds, seed):
    """Works up to 5 ms between its boundaries; what it has heard is its partial result."""
    ctx, heard, chance = sw.context(), [], random.Random(seed)
    ctx.partial(heard)
    ctx.emit("here")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        heard += ctx.boundary()
        ctx.partial(heard)
        time.sleep(chance.random() / 200)
    return heard


def collect_steers_for(seconds):
    ctx, seen = sw.context(), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen += ctx.boundary()
        time.sleep(0.002)
    return seen


def emit_many(count, size=0):
    ctx = sw.context()
    for number in range(count):
        ctx.emit("step", number=number, padding="x" * size)
    return count


def ask_for(tool):
    ctx = sw.context()
    try:
        ctx.ask(tool, x=1)
    except sw.Denied as denied:
        return str(denied)


def touch(path):
    with open(path, "w"):
        return path


def collect_steers_for_a_moment(seconds):
    """Returns the texts that it was steered with."""
    context, heard = sw.context(), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        heard += context.boundary()
        time.sleep(0.002)
    return heard + context.boundary()
