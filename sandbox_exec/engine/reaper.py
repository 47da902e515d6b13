"""Ends one process tree and says how it ended. The only caller of kill and wait.

The host is the parent of every child (CLONE_PARENT), so the end is read from the kernel by pidfd. A
status that somebody else took (``waitpid(-1)``, an ignored SIGCHLD) is asked of the pidfd itself, which
knows it from Linux 6.15 on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from dataclasses import dataclass
from typing import Final

_REPORT_BYTES: Final = 8

# ioctl(pidfd, PIDFD_GET_INFO): struct pidfd_info of 64 bytes, mask first, exit_code last.
_PIDFD_GET_INFO: Final = 0xC040FF0B
_PIDFD_INFO_EXIT: Final = 1 << 3
_PIDFD_INFO: Final = struct.Struct("=Q52xi")
_PIDFD_SIGNAL_PROCESS_GROUP: Final = 4
_FROM_KEYBOARDS: Final = frozenset({signal.SIGINT, signal.SIGQUIT})

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_CLD_EXITED: Final = 1


@dataclass(frozen=True, slots=True)
class Exit:
    """How the worker's process ended; code and signal both None: nobody can say any more.

    Attributes:
        code: exit code.
        signal: signal number.
        cpu_seconds: of the whole tree, as far as it was waited for.
        peak_rss_bytes: the largest resident set of one of its processes.
    """

    code: int | None = None
    signal: int | None = None
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0


class Process:
    """One child's processes: the one that the host is the parent of, and the worker.

    Args:
        pid, pidfd: the host's own child, the worker itself (status is None) or its init.
        status: reading end of the pipe on which init reports how the worker ended.
        contained: whether init is pid 1 of a namespace, so that its end is the whole tree's.
    """

    __slots__ = ("_contained", "_status", "_worker_fd", "pid", "pidfd", "worker")

    def __init__(self, pid: int, pidfd: int, status: int | None, *, contained: bool) -> None:
        self.pid, self.pidfd = pid, pidfd
        self._status, self._contained = status, contained
        self.worker = pid if status is None else 0
        self._worker_fd = pidfd if status is None else -1

    def identify(self, worker: int) -> bool:
        """Takes note of the worker's pid, as the kernel attested it; False if it is not init's child.

        Raises:
            ProcessLookupError: it is gone already; its death is told elsewhere.
            OSError: no descriptor is left to hold it by.
        """
        if self._status is None:
            return worker in {0, self.pid}
        if worker == 0:  # nobody attested anything
            return False
        if self._worker_fd >= 0:  # one that is being killed may say Ready again and again
            return worker == self.worker
        fd = os.pidfd_open(worker)
        if not proc_is_ours():  # another namespace's: the kernel's attestation has to do
            self.worker, self._worker_fd = worker, fd
            return True
        try:  # read after pidfd_open: this very process is meant
            parent = int(_stat(worker)[1])
        except FileNotFoundError as error:
            os.close(fd)
            raise ProcessLookupError from error
        except OSError:
            os.close(fd)
            raise
        if parent != self.pid:
            os.close(fd)
            return False
        self.worker, self._worker_fd = worker, fd
        return True

    def signal(self, number: int) -> None:
        """Signals the worker; one that is gone is fine."""
        if self._worker_fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._worker_fd, number)

    def pass_signal(self, number: int) -> None:
        """Signals a command; as a keyboard does, its whole process group where the kernel can (Linux 6.9)."""
        if number in _FROM_KEYBOARDS and self._worker_fd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._worker_fd, number, None, _PIDFD_SIGNAL_PROCESS_GROUP)
                return
        self.signal(number)

    def kill(self) -> None:
        """SIGKILL for the worker, whose init then ends the rest and keeps the account of its time.

        An init that is killed too takes the worker's times along: the kernel reaps what it leaves. Call
        `kill_tree` a moment later, for an init that cannot do its part.
        """
        if self._worker_fd >= 0:
            self.signal(signal.SIGKILL)
        else:
            self.kill_tree()

    def kill_tree(self) -> None:
        """SIGKILL for the whole tree."""
        self.signal(signal.SIGKILL)
        if self._status is None or self.pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._contained:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            else:  # a subreaper must live to end what comes home to it
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
                signal.pidfd_send_signal(self.pidfd, signal.SIGCONT)

    def collect(self) -> Exit | None:
        """Reaps; None while it lives."""
        try:
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return self._stolen()
        if found is None:
            return None
        cpu, rss = 0.0, 0
        with contextlib.suppress(ChildProcessError):
            # By pid, for its rusage: the zombie seen a moment ago keeps the number from being reused.
            _, _, used = os.wait4(self.pid, os.WNOHANG)
            cpu, rss = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        code, number = self._by_init() or _read(found.si_code, found.si_status)
        return Exit(code, number, cpu, rss)

    def wait(self) -> None:
        """Reaps a process of ours that was killed a moment ago."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)

    def _stolen(self) -> Exit:
        if (told := self._by_init()) is not None:
            return Exit(*told)
        status = _status_by_pidfd(self.pidfd)
        if status is None:
            return Exit()
        if os.WIFSIGNALED(status):
            return Exit(signal=os.WTERMSIG(status))
        return Exit(code=os.WEXITSTATUS(status))

    def _by_init(self) -> tuple[int | None, int | None] | None:
        if self._status is None:
            return None
        report = b""
        if self._worker_fd >= 0 and not self._contained:
            self.signal(signal.SIGKILL)  # it may have killed its init to outlive it
        with contextlib.suppress(BlockingIOError):
            report = os.read(self._status, _REPORT_BYTES)
        if len(report) == _REPORT_BYTES:
            how, status = (int.from_bytes(report[i : i + 4], sys.byteorder, signed=True) for i in (0, 4))
            if 0 <= status <= (255 if how == _CLD_EXITED else signal.NSIG):  # the pipe can be found by root
                return _read(how, status)
        return None, int(signal.SIGKILL)  # init went first, and the kernel ended the worker with it

    def cpu_seconds(self) -> float:
        """User and system time of the tree until now, of the living and of those they waited for."""
        if not proc_is_ours():
            return 0.0
        total, todo = 0, [self.pid]
        while todo:
            pid = todo.pop()
            with contextlib.suppress(OSError, IndexError, ValueError):
                total += sum(int(field) for field in _stat(pid)[11:15])
                todo += _children(pid)
        return total / _TICKS

    def rss_bytes(self) -> int:
        """The worker's resident set now."""
        try:
            with open(f"/proc/{self.worker}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def close(self) -> None:
        """Closes the descriptors; idempotent."""
        for fd in {self.pidfd, self._worker_fd, -1 if self._status is None else self._status}:
            if fd >= 0:
                os.close(fd)
        self.pidfd = self._worker_fd = -1
        if self._status is not None:
            self._status = -1


def _read(how: int, status: int) -> tuple[int | None, int | None]:
    return (status, None) if how == _CLD_EXITED else (None, status)


def _status_by_pidfd(pidfd: int) -> int | None:
    import fcntl

    info = bytearray(64)
    _PIDFD_INFO.pack_into(info, 0, _PIDFD_INFO_EXIT, 0)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:  # before Linux 6.13
        return None
    mask, status = _PIDFD_INFO.unpack(info)
    return status if mask & _PIDFD_INFO_EXIT else None


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name, which may hold anything: [1] is the parent."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _children(pid: int) -> list[int]:
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
            found += [int(child) for child in file.read().split()]
    return found


def end_unheld(pid: int) -> None:
    """Ends a child of ours that there is no descriptor for: until it is waited for, the number is its own."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED)


def proc_is_ours() -> bool:
    """Whether /proc shows our own pid namespace: else its numbers are other processes'."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def end_strays(thread: int, known: set[int]) -> None:
    """Ends children that this thread of the host is the parent of and nobody knows.

    A launcher that died between a clone and its answer leaves one: it has seen nothing but Boot.
    """
    if not proc_is_ours():
        return
    try:
        with open(f"/proc/self/task/{thread}/children", "rb") as file:
            pids = {int(pid) for pid in file.read().split()}
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN: such a child ends itself at EOF
        return
    for pid in pids - known:
        end_unheld(pid)
