"""Starts launchers: the only caller of posix_spawn, on the one thread that lives as long as the executor.

PDEATHSIG follows the host *thread* that started a launcher, also for everything the launcher clones
(CLONE_PARENT makes that thread their parent). Started from a caller's thread, every child would die
when that thread ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sandbox_worker.protocol
from sandbox_exec.engine.reaper import Process
from sandbox_exec.errors import ConfigError, LaunchError

CONTROL_FD: Final = 3
HOST_FD: Final = 4

# Its own directory only for its own import, at the end of the path: nothing that lies there can
# shadow the standard library.
_BOOT: Final = (
    "import sys;sys.path.append(sys.argv[1]);from sandbox_worker.launcher import main;sys.path.pop();main()"
)
_ROOT: Final = str(Path(sandbox_worker.protocol.__file__).parent.parent)
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}
_LOG_BYTES: Final = 4_000


@dataclass(slots=True)
class LauncherProcess:
    """A launcher, just started.

    Attributes:
        process: its process.
        control: our end of its control channel.
        log: a memfd that its stderr goes to.
    """

    process: Process
    control: socket.socket
    log: int

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        size = os.fstat(self.log).st_size
        return os.pread(self.log, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode("utf-8", "replace").strip()


Started = Callable[[LauncherProcess | LaunchError], None]


class Spawner:
    """The spawner thread."""

    def __init__(self, python: str | None = None) -> None:
        self._python = python or sys.executable
        self._jobs: queue.SimpleQueue[Started | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sandbox-exec spawner", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """The kernel's id of the thread: the parent of every child."""
        return self._thread.native_id or 0

    def start(self, started: Started) -> None:
        """Starts a launcher; `started` gets it, or the error, on the spawner thread."""
        self._jobs.put(started)

    def close(self) -> None:
        """Ends the thread, and with it by PDEATHSIG whatever it started and nobody ended."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (started := self._jobs.get()) is not None:
            try:
                launcher = _start(self._python)
            except (OSError, ValueError) as error:  # ValueError: no file could have such a name
                started(LaunchError(f"cannot start a launcher with {self._python!r}: {error}"))
            else:
                started(launcher)


def _start(python: str) -> LauncherProcess:
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs_only:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        control = _high(theirs.detach())
        theirs_only.callback(os.close, control)
        host = _high(os.pidfd_open(os.getpid()))
        theirs_only.callback(os.close, host)
        log = _high(os.memfd_create("launcher-log", os.MFD_CLOEXEC))
        undo.callback(os.close, log)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, log, 2),
            (os.POSIX_SPAWN_DUP2, control, CONTROL_FD),
            (os.POSIX_SPAWN_DUP2, host, HOST_FD),
        ]
        pid = os.posix_spawn(
            python,
            [python, "-I", "-S", "-X", "utf8", "-c", _BOOT, _ROOT],
            _ENVIRONMENT,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            # An ignored SIGCHLD would be inherited, and take every status away from the launcher.
            setsigdef=[s for s in signal.valid_signals() if s not in {signal.SIGKILL, signal.SIGSTOP}],
        )
        theirs_only.close()  # so that one descriptor is free for the next line, even when there are no more
        process = Process(pid, os.pidfd_open(pid), None, contained=False)
        undo.pop_all()
    ours.setblocking(False)
    return LauncherProcess(process, ours, log)


def _high(fd: int) -> int:
    """Moves a descriptor out of the way of the numbers that the launcher is to get."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(fd)


_VERSION: Final = "import sys; print(sys.implementation.cache_tag)"


def has_our_version(python: str | None) -> bool:
    """Whether an interpreter is of the host's own implementation and minor version; by asking it.

    Raises:
        ConfigError: it is no interpreter.
    """
    if python is None or python == sys.executable:
        return True
    try:
        run = [python, "-I", "-S", "-c", _VERSION]
        said = subprocess.run(run, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        msg = f"python={python!r} is no interpreter that can be run: {error}"
        raise ConfigError(msg) from error
    return said == sys.implementation.cache_tag
