"""pid 1 of a child that may start programs: starts the worker as pid 2, reaps, reports, ends the rest.

The worker itself must never be pid 1: it would survive its own SIGKILL and SIGTERM, its alarms would
never fire and an abort would read as signal 11. In a pid namespace, init's end is the whole tree's:
the kernel kills what is left and reports init dead only when all are gone.

Where no namespace can be had, init is a subreaper: whatever the worker leaves behind, double-forked
or in a session of its own, comes home to init, which ends it. That much the kernel allows, and no more.

Init holds neither channel nor output pipes and forwards nothing. Before it ends it writes the
worker's ``si_code, si_status`` (two 4-byte ints) to a pipe that only it holds.
"""

import _signal
import posix
import sys

from sandbox_worker import kernel


def run(python: str, argv: list[str], environment: dict[str, str], *, status: int, contained: bool) -> None:
    """Becomes init. Never returns; descriptors 0 to 4 are the worker's."""
    if not contained:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    posix.set_inheritable(status, False)
    worker = posix.posix_spawn(python, argv, environment, setsid=True)
    posix.dup2(status, 0, inheritable=False)
    posix.closerange(1, 1 << 20)
    while True:
        # WNOWAIT: the worker's status is written before its pid can be given to another.
        ended = posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOWAIT)
        assert ended is not None
        if ended.si_pid == worker:
            break
        posix.waitid(posix.P_PID, ended.si_pid, posix.WEXITED)
    report = b"".join(n.to_bytes(4, sys.byteorder, signed=True) for n in (ended.si_code, ended.si_status))
    posix.write(0, report)
    posix.waitid(posix.P_PID, worker, posix.WEXITED)
    if not contained:
        end_tree()
    posix._exit(0)  # noqa: SLF001


def end_with_the_tree() -> None:
    """Without a namespace, SIGTERM (from the host, or its death) means: end all, then yourself."""

    def handler(_signum: int, _frame: object) -> None:
        end_tree()
        posix._exit(0)  # noqa: SLF001

    _signal.signal(_signal.SIGTERM, handler)


def end_tree() -> None:
    """Kills every descendant: each round's orphans are children of ours in the next."""
    while True:
        for pid in _children():
            try:
                posix.kill(pid, _signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            posix.waitid(posix.P_ALL, 0, posix.WEXITED)
        except ChildProcessError:
            return


def _children() -> list[int]:
    me = str(posix.getpid())
    try:
        fd = posix.open(f"/proc/self/task/{me}/children", posix.O_RDONLY)
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [int(pid) for pid in posix.listdir("/proc") if pid.isdigit() and _parent(pid) == me]
    try:
        return [int(pid) for pid in posix.read(fd, 1 << 20).split()]
    finally:
        posix.close(fd)


def _parent(pid: str) -> str:
    try:
        fd = posix.open(f"/proc/{pid}/stat", posix.O_RDONLY)
    except OSError:
        return ""
    try:
        return posix.read(fd, 4096).rpartition(b")")[2].split()[1].decode()
    except OSError:
        return ""
    finally:
        posix.close(fd)
