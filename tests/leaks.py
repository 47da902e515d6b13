"""What this process holds: descriptors, threads, child processes, shared memory, temporary files.

The fixture in conftest.py takes stock before and after every test. Everything is read from the kernel, not
from Python's own records: a thread that C code started and a descriptor that nobody wraps count too.
"""

import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

GRACE_SECONDS = 5.0

# What comes up once per interpreter, on first use, and stays until its end. Nothing else is tolerated: a
# pattern (found in the command line) and the reason.
LAZY_CHILDREN = {
    "resource_tracker import main": "multiprocessing's own process, started with its first shared object",
}
LAZY_DESCRIPTORS = {
    "multiprocessing.resource_tracker": "the pipe to that process: module whose _resource_tracker._fd it is",
    "multiprocess.resource_tracker": "the same of the multiprocess package",
}

Things = dict[object, str]  # identity -> text for people


@dataclass(frozen=True, slots=True)
class Stock:
    descriptors: Things
    threads: Things
    children: Things
    shared_memory: Things
    temporary: Things


def take_stock(temporary: Path) -> Stock:
    return Stock(
        descriptors=_descriptors(),
        threads=_threads(),
        children=_children(),
        shared_memory=_entries(Path("/dev/shm")),
        temporary=_entries(temporary),
    )


def difference(before: Stock, after: Stock) -> list[str]:
    """One line per thing that was left behind, and per descriptor that is no longer what it was."""
    lines = []
    for kind in Stock.__slots__:
        old, new = getattr(before, kind), getattr(after, kind)
        name = kind.replace("_", " ")
        lines += [f"{name}: left behind: {text}" for key, text in new.items() if key not in old]
        if kind == "descriptors":  # somebody else's was closed; a thread or a child may well have ended
            lines += [f"{name}: lost: {text}" for key, text in old.items() if key not in new]
    return lines


def wait_for_same(before: Stock, temporary: Path, grace: float = GRACE_SECONDS) -> list[str]:
    """What still differs after the grace period; nothing as soon as nothing differs."""
    deadline = time.monotonic() + grace
    pause = 0.001
    while lines := difference(before, take_stock(temporary)):
        # A cycle that waits for the collector is not a leak. If it held something open, its ResourceWarning
        # is an error of its own.
        gc.collect()
        if time.monotonic() > deadline:
            return _without_foreign_memory(lines)
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return []


def _descriptors() -> Things:
    lazy = {
        sys.modules[name]._resource_tracker._fd  # the package has no public name for it
        for name in LAZY_DESCRIPTORS
        if name in sys.modules
    }
    things: Things = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor that listed the folder
            continue
        if int(name) not in lazy:
            things[name, target] = f"{name} -> {target}"
    return things


def _threads() -> Things:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    things: Things = {}
    for task in os.listdir("/proc/self/task"):
        tid = int(task)
        things[tid] = (
            f"thread {tid} ({names.get(tid) or 'not of threading: ' + _read(f'/proc/self/task/{tid}/comm')})"
        )
    return things


def _children() -> Things:
    things: Things = {}
    for pid in _descendants(os.getpid()):
        stat = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if not stat:  # it ended meanwhile
            continue
        command = _read(f"/proc/{pid}/cmdline").replace("\0", " ") or _read(f"/proc/{pid}/comm")
        if any(pattern in command for pattern in LAZY_CHILDREN):
            continue
        state, parent, started = stat[0], stat[1], stat[19]
        things[pid, started] = f"process {pid} (state {state}, parent {parent}): {command.strip()[:200]}"
    return things


def _descendants(pid: int) -> list[int]:
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        # A kernel without CONFIG_PROC_CHILDREN: slower, every process of the machine is read.
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it ended meanwhile
        return []
    found = []
    for task in tasks:
        for child in map(int, _read(f"/proc/{pid}/task/{task}/children").split()):
            found += [child, *_descendants(child)]
    return found


def _entries(folder: Path) -> Things:
    try:
        return {name: str(folder / name) for name in os.listdir(folder)}
    except OSError:
        return {}


def _without_foreign_memory(lines: list[str]) -> list[str]:
    """Leaves out what another program on this machine has mapped: /dev/shm is everyone's."""
    prefix = "shared memory: left behind: "
    suspects = {line.removeprefix(prefix) for line in lines if line.startswith(prefix)}
    if not suspects:
        return lines
    ours = {os.getpid(), *_descendants(os.getpid())}
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in ours]
    maps = "".join(_read(f"/proc/{pid}/maps") for pid in others)
    return [
        line for line in lines if line.removeprefix(prefix) not in {path for path in suspects if path in maps}
    ]


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace").strip("\n")
    except OSError:
        return ""
