"""The launcher: one small single-threaded process per executor, which performs every clone.

Why not the host: a threaded host cannot enter a user namespace, and a fork would give children its
memory, locks and descriptors. CLONE_PARENT makes the *host* the real parent, so that it reads every
end from the kernel and need believe nothing that this process says.

Request, on descriptor 3: the clone's shape. Answer: pid or -errno (8 bytes, signed), with the clone's
pidfd and the host's end of a socket on which the clone waits for its one order: the packed rlimits, with
the descriptors channel, stdout, stderr and, for shape "init", the status pipe.

It holds no secret, its memory cannot be read by others of its uid (not dumpable), and it ends with
its host: at EOF of the control channel, or by PDEATHSIG.
"""

import _socket
import marshal
import posix
import resource
import select
import sys

from sandbox_worker import init, kernel, protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROL_FD, HOST_FD = 3, 4
DIRECT, INIT = "direct", "init"

# Constant, so that nothing of the user's reaches execve or the dynamic loader: it all travels in Run.
# 512 MB of address space and 32 threads fit only with one malloc arena.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}

# The worker's code arrives as a sealed memfd: no path of anybody's is searched before Ready.
BOOT = (
    f"import marshal as m,posix as p;b=m.loads(p.pread({protocol.BUNDLE_FD},1<<22,0))\n"
    f"p.close({protocol.BUNDLE_FD})\n"
    "exec(m.loads(b['sandbox_worker.boot'][1]),{'__name__':'sandbox_worker.boot','BUNDLE':b})"
)
ARGUMENTS = ["-I", "-S", "-X", "utf8", "-c", BOOT]
BUNDLED = ["", ".boot", ".channel", ".conversation", ".protocol", ".runner", ".values"]

_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 0x1, 0x2
_F_ADD_SEALS, _ALL_SEALS = 1033, 0xF


def bundle() -> int:
    """A sealed memfd with the code of the worker's modules: {name: (file, marshalled code)}."""
    import fcntl
    from importlib.util import find_spec

    modules = {}
    for suffix in BUNDLED:
        name = "sandbox_worker" + suffix
        spec: Any = find_spec(name)
        modules[name] = (spec.origin, marshal.dumps(spec.loader.get_code(name)))
    fd = posix.memfd_create("sandbox-worker", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    posix.write(fd, marshal.dumps(modules))
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    return fd


class Launcher:
    """What every clone needs, made once."""

    def __init__(self) -> None:
        self.control = _socket.socket(fileno=CONTROL_FD)
        self.python = sys.executable
        self.null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
        self.bundle = bundle()
        self.host_alive = select.poll()
        self.host_alive.register(HOST_FD, select.POLLIN)
        self.namespaces = _probe()

    def serve(self) -> None:
        """Answers requests until the host closes the control channel."""
        words = (protocol.VERSION, self.namespaces)
        self.control.send(b"".join(n.to_bytes(8, "little") for n in words))
        while request := self.control.recv(protocol.FRAME_BYTES):
            pid, fds = self._clone(request.decode())
            rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
            ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else []
            self.control.sendmsg([pid.to_bytes(8, "little", signed=True)], ancillary)
            for fd in fds:
                posix.close(fd)

    def _clone(self, shape: str) -> tuple[int, list[int]]:
        flags = kernel.CLONE_PARENT
        if shape == INIT:
            flags |= self.namespaces
        theirs, ours = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            pid, pidfd = kernel.clone(flags)
        except OSError as error:
            return -(error.errno or 1), []
        if pid == 0:
            theirs.close()
            self._become_child(shape, ours)
        return pid, [pidfd, theirs.detach()]

    def _become_child(self, shape: str, waits: _socket.socket) -> None:
        """In the clone; never returns."""
        try:
            bare = shape == INIT and not self.namespaces
            kernel.prctl(kernel.PR_SET_PDEATHSIG, kernel.SIGTERM if bare else kernel.SIGKILL)
            if bare:
                init.end_with_the_tree()
            if self.host_alive.poll(0):  # the host died before the prctl
                posix._exit(113)  # noqa: SLF001
            if shape == INIT and self.namespaces & kernel.CLONE_NEWUSER:
                _map_own_user()
            posix.setsid()
            posix.dup2(self.null, CONTROL_FD)  # not closed: its number is not for a descriptor of the order's
            frame, ancillary, _, _ = waits.recvmsg(protocol.FRAME_BYTES, 64, _socket.MSG_CMSG_CLOEXEC)
            if not frame:  # nobody needs it
                posix._exit(0)  # noqa: SLF001
            fds = _descriptors(ancillary)
            for fd, target in zip((self.null, fds[1], fds[2], fds[0], self.bundle), range(5), strict=True):
                posix.dup2(fd, target)
            for which, soft, hard in protocol.unpack(frame)[
                0
            ]:  # what fails from here on is told on its stderr
                resource.setrlimit(which, (soft, hard))
            argv = [self.python, *ARGUMENTS]
            if shape == INIT:
                init.run(self.python, argv, ENVIRONMENT, status=fds[3], contained=bool(self.namespaces))
            posix.execve(self.python, argv, ENVIRONMENT)
        except BaseException as error:  # noqa: BLE001 the host sees the exit; the text goes to the child's stderr
            posix.write(2, f"sandbox-exec: cannot start the worker: {error!r}\n".encode())
        finally:
            posix._exit(112)  # noqa: SLF001


def _descriptors(ancillary: "list[tuple[int, int, bytes]]") -> list[int]:
    data = b"".join(body for level, kind, body in ancillary if kind == _socket.SCM_RIGHTS)
    return [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data), 4)]


def _map_own_user() -> None:
    """Maps this user to itself, alone, in the user namespace just entered."""
    uid, gid = _OWN_IDS
    # The clone inherits "not dumpable", whose /proc files belong to root: it could not write its maps.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = posix.open(f"/proc/self/{name}", posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(fd, text.encode())
        posix.close(fd)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


_OWN_IDS = (posix.geteuid(), posix.getegid())


def _probe() -> int:
    """The flags that give a pid namespace here, found by trying; 0 where none can be had."""
    for flags in (kernel.CLONE_NEWPID, kernel.CLONE_NEWPID | kernel.CLONE_NEWUSER):
        try:
            pid, pidfd = kernel.clone(flags)
        except OSError:
            continue
        if pid == 0:
            status = 0
            try:
                if flags & kernel.CLONE_NEWUSER:
                    _map_own_user()
            except OSError:
                status = 1
            finally:
                posix._exit(status)  # noqa: SLF001
        posix.close(pidfd)
        _, status = posix.waitpid(pid, 0)
        if status == 0:
            return flags
    return 0


def main() -> None:
    """The launcher's life."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, kernel.SIGKILL)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    posix.closerange(HOST_FD + 1, 1 << 20)
    posix.set_inheritable(CONTROL_FD, False)
    posix.set_inheritable(HOST_FD, False)
    posix.chdir("/")
    launcher = Launcher()
    if not launcher.host_alive.poll(0):
        launcher.serve()
