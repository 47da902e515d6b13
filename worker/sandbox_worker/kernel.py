"""The few system calls that Python does not offer, through `_ctypes` on libc.

`ctypes` itself is a Python package and costs 3 ms to import; a launcher that serves every start uses
the extension module below it. Everything raises OSError with the step's name: nothing is best effort.
"""

import _ctypes
import posix

_ARCHITECTURES = {"x86_64": 56, "aarch64": 220}  # number of clone(2)
MACHINE = posix.uname().machine

CLONE_PIDFD, CLONE_PARENT = 0x1000, 0x8000
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x00200000, 0x01000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
SIGCHLD, SIGKILL, SIGTERM = 17, 9, 15

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_GET_TID_ADDRESS = 1, 4, 36, 40


class Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001 what ctypes.c_long is
    """A C long, wide enough for a pointer on every Linux that we serve."""

    _type_ = "l"


class _Function(_ctypes.CFuncPtr):
    # FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI | FUNCFLAG_USE_ERRNO. PYTHONAPI keeps the GIL over the call:
    # nothing of the interpreter may run between a clone and its "after fork" hooks.
    _flags_ = 0x1 | 0x4 | 0x8
    _restype_ = Long


_LIBC = _ctypes.dlopen(None, 2)  # type: ignore[arg-type]  # None is this program itself
_syscall = _Function(_ctypes.dlsym(_LIBC, "syscall"))
_prctl = _Function(_ctypes.dlsym(_LIBC, "prctl"))
_before_fork = _Function(_ctypes.dlsym(_LIBC, "PyOS_BeforeFork"))
_after_fork_parent = _Function(_ctypes.dlsym(_LIBC, "PyOS_AfterFork_Parent"))
_after_fork_child = _Function(_ctypes.dlsym(_LIBC, "PyOS_AfterFork_Child"))


def prctl(option: int, value: int) -> None:
    """The system call prctl with one argument.

    Raises:
        OSError: with the option in its text.
    """
    if _prctl(option, Long(value), Long(0), Long(0), Long(0)) < 0:
        number = _ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {posix.strerror(number)}")


def _tid_address() -> int:
    address = Long(0)
    if _prctl(PR_GET_TID_ADDRESS, _ctypes.byref(address), Long(0), Long(0), Long(0)) < 0:
        return 0  # a kernel without CONFIG_CHECKPOINT_RESTORE
    return int(address.value)


_TID_ADDRESS = _tid_address()
_pidfd = Long(0)


def clone(flags: int) -> tuple[int, int]:
    """Forks, as the system call clone does with these flags; gives (pid, pidfd), and (0, -1) in the copy.

    The tid flags repair what glibc keeps about the thread: after a raw clone its cached tid is the
    parent's, and pthread_kill(main) fails with ESRCH.
    """
    flags |= CLONE_PIDFD | SIGCHLD
    tid = _TID_ADDRESS
    if tid:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    child_tid, tls = Long(tid), Long(0)
    last = (child_tid, tls) if MACHINE == "x86_64" else (tls, child_tid)
    _before_fork()
    pid = _syscall(Long(_ARCHITECTURES[MACHINE]), Long(flags), Long(0), _ctypes.byref(_pidfd), *last)
    if pid == 0:
        _after_fork_child()
        return 0, -1
    number = _ctypes.get_errno()
    _after_fork_parent()
    if pid < 0:
        raise OSError(number, f"clone({flags:#x}): {posix.strerror(number)}")
    return pid, _pidfd.value & 0xFFFFFFFF
