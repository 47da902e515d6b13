"""Ways to use more than is allowed."""

import os
import resource
import subprocess
import sys
import threading
import time

import sandbox_worker as sw


def spin():
    sw.context().emit("here")
    while True:
        pass


def spin_for(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return seconds


def spin_in_grandchildren(count):
    """The child itself only waits; two generations below, the work is done."""
    for _ in range(count):
        if os.fork() == 0:
            if os.fork() == 0:
                spin_for(60)
            os.wait()
            os._exit(0)
    time.sleep(60)


def spin_in_programs(count):
    code = "while True: pass"
    programs = [subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) for _ in range(count)]
    return [program.wait() for program in programs]


def spin_along_a_chain(links, seconds):
    """Every link stays below the limit, hands over to the next and leaves."""
    first = os.getpid()
    for _ in range(links):
        spin_for(seconds)
        if os.fork():
            if os.getpid() == first:
                time.sleep(60)  # the child itself has to stay
            os._exit(0)
    os._exit(0)


def one_allocation(size):
    return len(bytearray(size))


def many_allocations(size):
    kept = []
    while True:
        kept.append(" " * size)


def allocate_in_program(size):
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"bytearray({size})"], check=False, stderr=-3
    ).returncode


def open_many():
    kept = []
    while True:
        kept.append(os.open(os.devnull, os.O_RDONLY))


def write_file(size, catch=False):
    try:
        with open("large", "wb", buffering=0) as file:
            file.write(bytes(size // 2))
            file.write(bytes(size - size // 2))
            if os.fstat(file.fileno()).st_size < size:
                file.write(b"one more")
    except OSError as error:
        if not catch:
            raise
        return error.errno
    return os.stat("large").st_size


def start_threads(count):
    go = threading.Event()
    threads = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=go.wait)
            thread.start()
            threads.append(thread)
    finally:
        go.set()
        for thread in threads:
            thread.join()
    return len(threads)


def start_processes(count):
    """Forked ones that stay."""
    for _ in range(count):
        if os.fork() == 0:
            time.sleep(60)
    return count


def own_limits():
    names = ("CORE", "AS", "CPU", "NOFILE", "FSIZE", "NPROC")
    return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in names}


def print_bytes(count, stream=1):
    """Counted lines, so that every place in the output can be told from every other."""
    written = 0
    while written < count:
        block = b"".join(b"%015d\n" % at for at in range(written, min(written + 65_536, count + 16), 16))
        written += os.write(stream, block[: count - written])
    return written


def expected_bytes(start, end):
    """What `print_bytes` writes between these two places."""
    first = start - start % 16
    return b"".join(b"%015d\n" % at for at in range(first, end + 16, 16))[start - first : end - first]


def read_input():
    return sys.stdin.buffer.read()


def read_line():
    return input()


def sleep_about(seconds):
    time.sleep(seconds)
    return "in time"
