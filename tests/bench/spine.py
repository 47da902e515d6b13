"""Measures the spine: ``python tests/bench/spine.py [ROW ...] [--quick]``. Prints one line per figure.

Each row is measured beside its floor or peer in the same minutes, sample by sample: trust the ratios. The
peers are the standard library's; nothing but this project is needed.
"""

import argparse
import contextlib
import gc
import multiprocessing
import os
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from functools import partial

import sandbox_exec as sx
from sandbox_exec.engine.events import EventLog
from sandbox_worker import protocol

NONE = "none"


# Targets. ---------------------------------------------------------------------------------------------


def stamp():
    return time.monotonic_ns()


def nap():
    import sandbox_worker as sw

    sw.context().emit("begun", at=time.monotonic_ns())
    time.sleep(1e6)


def spin():
    import sandbox_worker as sw

    sw.context().emit("begun", at=time.monotonic_ns())
    while True:
        pass


def polite():
    import sandbox_worker as sw

    context = sw.context()
    context.emit("begun", at=time.monotonic_ns())
    while True:
        context.boundary()
        time.sleep(0.001)


def flood():
    import os

    import sandbox_worker as sw

    context, noise = sw.context(), b"x" * 4096
    context.emit("begun", at=time.monotonic_ns())
    while True:
        for _ in range(16):
            context.emit("noise", number=1)
        os.write(1, noise)


def echo():
    """Answers every steer with an event, as fast as the channel goes."""
    from sandbox_worker import channel

    while True:
        message = channel.receive()
        channel.send(f'{{"t":"event","kind":"echo","plain":{{"number":{message[1]}}}}}')


def mp_stamp(fifo):
    with open(fifo, "wb", 0) as file:
        file.write(time.monotonic_ns().to_bytes(8, "little"))


def mp_nap(fifo):
    mp_stamp(fifo)
    while True:
        pass


def mp_echo(connection):
    while True:
        connection.send(connection.recv())


# Measuring. -------------------------------------------------------------------------------------------


def p(samples, q):
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def say(row, what, samples=None, value=None, unit="ms"):
    if samples is not None:
        quantiles = (f"p{round(100 * q)} {p(samples, q):9.3f}" for q in (0.5, 0.95, 0.99))
        text = f"{'  '.join(quantiles)}  n {len(samples)}"
    else:
        text = f"    {value:9.3f}"
    print(f"{row:10} {what:52} {text} {unit}", flush=True)


def begun(child):
    return next(e.data["at"] for e in child.events() if e.source == "child" and e.kind == "begun")


def spawn_and_kill():
    """The floor of every end: milliseconds from the kill of a sleeping interpreter to its pidfd."""
    command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
    pid = os.posix_spawn(sys.executable, command, os.environ)
    fd = os.pidfd_open(pid)
    time.sleep(0.05)
    asked = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    took = (gone_at(fd) - asked) / 1e6
    os.close(fd)
    os.waitpid(pid, 0)
    return took


def gone_at(pidfd):
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(20_000)
    return time.monotonic_ns()


class Fifo:
    def __init__(self, folder):
        self.path = os.path.join(folder, "fifo")
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def read(self):
        return int.from_bytes(os.read(self.fd, 8), "little")


def launch(quick, folder):
    fifo, context = Fifo(folder), multiprocessing.get_context("spawn")
    act = "posix.write(f,time.monotonic_ns().to_bytes(8,'little'))"
    code = f"import posix,time\nf=posix.open({fifo.path!r},1);{act}"
    floor, ours, spawn = [], [], []
    with sx.SandboxExecutor(NONE) as ex:
        for turn in range(10 if quick else 60):
            asked = time.monotonic_ns()
            pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", code], os.environ)
            floor.append((fifo.read() - asked) / 1e6)
            os.waitpid(pid, 0)
            asked = time.monotonic_ns()
            ours.append((ex.launch(stamp).outcome(60).unwrap() - asked) / 1e6)
            if turn % 3 == 0:
                asked = time.monotonic_ns()
                process = context.Process(target=mp_stamp, args=(fifo.path,))
                process.start()
                spawn.append((fifo.read() - asked) / 1e6)
                process.join()
    say("launch", "floor: python -I -S -c", floor[2:])
    say("launch", "ours, exec, to the first act", ours[2:])
    say("launch", "multiprocessing spawn", spawn[1:])
    say("launch", "ours / floor (goal <= 1.25)", value=p(ours[2:], 0.5) / p(floor[2:], 0.5), unit="x")
    say("launch", "ours / spawn (goal <= 0.3)", value=p(ours[2:], 0.5) / p(spawn[1:], 0.5), unit="x")


def submit(quick, folder):
    """Submit to result of a no-op, beside launch to the first act; and the import of the package."""
    whole, act, imports = [], [], []
    code = "import time; t = time.perf_counter(); import sandbox_exec; sandbox_exec.SandboxExecutor; "
    with sx.SandboxExecutor(NONE) as ex:
        for _ in range(10 if quick else 60):
            asked = time.monotonic_ns()
            act.append((ex.launch(stamp).outcome(60).unwrap() - asked) / 1e6)
            time.sleep(0.05)
            asked = time.monotonic_ns()
            ex.submit(stamp).result()
            whole.append((time.monotonic_ns() - asked) / 1e6)
            time.sleep(0.05)
    for _ in range(3 if quick else 10):
        run = [sys.executable, "-c", code + "print(1e3 * (time.perf_counter() - t))"]
        imports.append(float(subprocess.run(run, stdout=subprocess.PIPE, check=True).stdout))
    say("submit", "launch to the first act", act[2:])
    say("submit", "submit to the result of a no-op", whole[2:])
    say("submit", "submit / launch (goal <= 1.3)", value=p(whole[2:], 0.5) / p(act[2:], 0.5), unit="x")
    say("submit", "import sandbox_exec and its executor (goal <= 150)", imports)


def kill(quick, folder):
    fifo, context = Fifo(folder), multiprocessing.get_context("spawn")
    ours, theirs = [], []
    with sx.SandboxExecutor(NONE) as ex:
        for _ in range(6 if quick else 30):
            child = ex.launch(spin)
            begun(child)
            fd = os.pidfd_open(child.pid)
            time.sleep(0.02)
            asked = time.monotonic_ns()
            child.kill()
            ours.append((gone_at(fd) - asked) / 1e6)
            os.close(fd)
            child.outcome(10)
            process = context.Process(target=mp_nap, args=(fifo.path,))
            process.start()
            fifo.read()
            fd = os.pidfd_open(process.pid)
            time.sleep(0.02)
            asked = time.monotonic_ns()
            process.kill()
            theirs.append((gone_at(fd) - asked) / 1e6)
            os.close(fd)
            process.join()
    say("kill", "ours: kill of a busy loop -> gone", ours[1:])
    say("kill", "multiprocessing kill() -> gone", theirs[1:])
    say("kill", "ours / multiprocessing (goal <= 0.9)", value=p(ours[1:], 0.5) / p(theirs[1:], 0.5), unit="x")


def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def many(quick, _folder):
    """1,000 children: memory, idle CPU, deaths."""
    count = 200 if quick else 1000
    with sx.SandboxExecutor(NONE, max_children=count + 8) as ex:
        children, base = [], 0
        for number in range(count):
            children.append(ex.launch(nap))
            if number % 16 == 15:
                begun(children[-1])
            if number == count // 10:
                begun(children[-1])
                gc.collect()
                base = rss()
        for child in children:
            begun(child)
        gc.collect()
        say(
            "many",
            f"host RSS a child, {count // 10} to {count} (goal <= 12)",
            value=(rss() - base) / (count * 0.9) / 1e3,
            unit="kB",
        )
        time.sleep(0.5)
        used, wall = time.process_time(), time.monotonic()
        time.sleep(2 if quick else 5)
        share = 100 * (time.process_time() - used) / (time.monotonic() - wall)
        say("many", f"host CPU with {count} idle children (goal <= 0.1)", value=share, unit="%")
        took, floor, wrong = [], [], 0
        for child in random.sample(children, min(100, count // 2)):
            waiter_at = []

            def wait(child=child, waiter_at=waiter_at):
                child.outcome(20)
                waiter_at.append(time.monotonic_ns())

            waiter = threading.Thread(target=wait)
            waiter.start()
            time.sleep(0.01)
            asked = time.monotonic_ns()
            os.kill(child.pid, signal.SIGKILL)
            waiter.join()
            took.append((waiter_at[0] - asked) / 1e6)
            outcome = child.outcome()
            wrong += (outcome.state, outcome.exit.signal) != (sx.SubagentState.INTERRUPTED, 9)
            children.remove(child)
            floor.append(spawn_and_kill())
        say("many", "floor: python -I -S killed -> its pidfd", floor)
        say("many", "death -> outcome (goal p50 <= 1)", took)
        lost = sum(not child.alive for child in children)
        say("many", "deaths told wrongly, siblings disturbed", value=wrong + lost, unit="")
        asked = time.monotonic()
    say("many", "shutdown of all", value=1e3 * (time.monotonic() - asked))


def flooded(quick, _folder):
    """Cancel and death of one child while 8 others flood events and output."""
    cancels, deaths, floor = [], [], []
    with sx.SandboxExecutor(NONE) as ex:
        floods = [ex.launch(flood) for _ in range(8)]
        for child in floods:
            begun(child)
        for _ in range(10 if quick else 100):
            for how, took in (("cancel", cancels), ("death", deaths)):
                child = ex.launch(nap)
                begun(child)
                asked = time.monotonic_ns()
                if how == "cancel":
                    child.cancel()
                else:
                    os.kill(child.pid, signal.SIGKILL)
                outcome = child.outcome(20)
                took.append((time.monotonic_ns() - asked) / 1e6)
                assert outcome.state.value == ("CANCELLED" if how == "cancel" else "INTERRUPTED")
            floor.append(spawn_and_kill())
        assert all(child.alive for child in floods)
        for child in floods:
            child.kill()
    say("flooded", "floor: python -I -S killed -> its pidfd, 8 flooding", floor)
    say("flooded", "cancel -> outcome, 8 flooding (goal p99 <= 5)", cancels)
    say("flooded", "death -> outcome, 8 flooding (goal p99 <= 5)", deaths)


def trips(quick, _folder):
    """Round trips over 200 children on one loop, strictly decoded, beside multiprocessing Pipes on epoll."""
    count, seconds, ours, theirs, floor = *((50, 0.5) if quick else (200, 2.0)), [], [], []
    for _ in range(1 if quick else 5):
        for kind, rates in (("ours", ours), ("pipe", theirs), ("raw", floor)):
            # In a process of its own, as compare.py does it: what one leaves in the heap slows the next.
            run = [sys.executable, __file__, "--trips", kind, str(count), str(seconds)]
            rates.append(float(subprocess.run(run, stdout=subprocess.PIPE, check=True).stdout))
    say("trips", f"ours, {count} children", value=statistics.median(ours), unit="trips/s")
    say("trips", f"floor: raw bytes, {count} children", value=statistics.median(floor), unit="trips/s")
    say("trips", f"multiprocessing Pipe, {count} children", value=statistics.median(theirs), unit="trips/s")
    for what, others in (("Pipe (goal >= 2.0)", theirs), ("floor", floor)):
        ratio = statistics.median(mine / other for mine, other in zip(ours, others, strict=True))
        say("trips", f"ours / {what}, median of pairs", value=ratio, unit="x")


def _our_trips(count, seconds):
    done, text = [0], "x" * 120
    real_add = EventLog.add
    senders = {}

    def add(log, source, *rest):
        real_add(log, source, *rest)
        if source == "child":
            done[0] += 1
            if (send := senders.get(id(log))) is not None:
                send(protocol.pack("steer", done[0], text))

    EventLog.add = add
    try:
        with sx.SandboxExecutor(NONE, max_children=count) as ex:
            children = [ex.launch(echo) for _ in range(count)]
            while any(child.state.value != "RUNNING" for child in children):
                time.sleep(0.01)
            broker = ex._ward.broker
            for child in children:
                senders[id(child._log)] = child._warden._hearing.send
                broker.post(lambda child=child: senders[id(child._log)](protocol.pack("steer", 0, text)))
            time.sleep(1.0)
            start, at = done[0], time.perf_counter()
            time.sleep(seconds)
            rate = (done[0] - start) / (time.perf_counter() - at)
            senders.clear()
            for child in children:
                child.kill()
        return rate
    finally:
        EventLog.add = real_add


class _Pickled:
    """multiprocessing's own connection."""

    def __init__(self):
        self.mine, self.other = multiprocessing.get_context("fork").Pipe()
        self.fileno, self.send, self.recv = self.mine.fileno, self.mine.send, self.mine.recv
        self.message = {"type": "steer", "seq": 7, "task": "t-0123456789ab", "text": "x" * 120}


class _Raw:
    """150 bytes over the kind of socket that a channel is."""

    def __init__(self):
        self.mine, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fileno, self.send, self.message = self.mine.fileno, self.mine.send, b"x" * 150

    def recv(self):
        return self.mine.recv(65_536)


def raw_echo(sock):
    while data := sock.recv(65_536):
        sock.send(data)


def _mp_trips(count, seconds, kind):
    context, links, processes = multiprocessing.get_context("fork"), {}, []
    for _ in range(count):
        link = kind()
        target = mp_echo if kind is _Pickled else raw_echo
        processes.append(context.Process(target=target, args=(link.other,), daemon=True))
        processes[-1].start()
        link.other.close()
        links[link.fileno()] = link
    poll = select.epoll()
    for fd, link in links.items():
        poll.register(fd, select.EPOLLIN)
        link.send(link.message)
    time.sleep(1.0)
    trips, at = 0, time.perf_counter()
    while time.perf_counter() - at < seconds:
        for fd, _ in poll.poll():
            link = links[fd]
            link.recv()
            link.send(link.message)
            trips += 1
    rate = trips / (time.perf_counter() - at)
    for process in processes:
        process.kill()
        process.join()
    for link in links.values():
        link.mine.close()
    poll.close()
    return rate


def churn(quick, _folder):
    """10,000 launches, a third killed, a third cancelled."""
    count = 600 if quick else 10_000
    with sx.SandboxExecutor(NONE, max_children=8) as ex:

        def batch(number):
            live = []
            for i in range(number):
                live.append(ex.launch(nap if i % 3 else stamp))
                if len(live) == 8:
                    finish(live)
            finish(live)

        def finish(live):
            for i, child in enumerate(live):
                if child.name == "nap":
                    (child.kill if i % 2 else child.cancel)()
            for child in live:
                child.outcome(30)
            live.clear()

        batch(100)
        gc.collect()
        time.sleep(0.2)  # the clones made ahead are complete again
        fds, before = len(os.listdir("/proc/self/fd")), rss()
        batch(count)
        gc.collect()
        time.sleep(0.2)
        say(
            "churn",
            f"descriptors after {count} launches, more than before",
            value=len(os.listdir("/proc/self/fd")) - fds,
            unit="",
        )
        say(
            "churn", f"host growth over {count} launches (goal <= 5)", value=(rss() - before) / 1e6, unit="MB"
        )
        print(f"churn      {ex.statistics()}")


ROWS = {row.__name__: row for row in (launch, submit, kill, many, flooded, trips, churn)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", nargs="*", choices=[[], *ROWS], default=[])
    parser.add_argument("--quick", action="store_true", help="fewer samples: some seconds a row")
    parser.add_argument("--trips", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trips:
        kind, count, seconds = options.trips
        kinds = {"pipe": _Pickled, "raw": _Raw}
        trips = partial(_mp_trips, kind=kinds[kind]) if kind in kinds else _our_trips
        print(trips(int(count), float(seconds)))
        return
    import tempfile

    for name in options.row or ROWS:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
            ROWS[name](options.quick, folder)


if __name__ == "__main__":
    main()
