"""The cgroup hierarchies of this host, and the folder in each below which groups may be made.

Always *below* the host's own group, so that whatever bounds the host bounds its children too. v1 mounts,
v2 and mixtures are told apart by what is mounted. On v2 a group holds processes or passes controllers on,
never both: where the host is alone in a group that was delegated to it, it moves itself, and what it
started, into a leaf below. Beside strangers it moves nothing, and there are no limits by v2.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "sandbox-exec"
LEAF: Final = f"{PREFIX}-host"
KINDS: Final = ("memory", "pids", "cpu")

_V1: Final = {"memory": "memory", "pids": "pids", "cpuacct": "cpu"}  # its controllers, and what they give
_V2: Final = frozenset({"memory", "pids"})  # cpu.stat needs no controller
_ROUNDS: Final = 8
_HINT: Final = "start the host in a group of its own: systemd-run --user --scope -p Delegate=yes ..."


@contextlib.contextmanager
def _named(step: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{step}: {error.strerror}", path) from error


class Files:
    """The calls that touch the hierarchies; a test brings its own."""

    def read(self, path: str) -> str:
        """All of a file."""
        with _named("reading", path), open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()

    def write(self, path: str, text: str) -> None:
        """Writes in one call to a file that is there."""
        with _named(f"writing {text!r}", path):
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)

    def make(self, path: str) -> None:
        """Makes a group."""
        with _named("making a cgroup", path):
            os.mkdir(path, 0o755)

    def unmake(self, path: str) -> None:
        """Removes a group that has no groups in it; one that is gone is fine."""
        with contextlib.suppress(FileNotFoundError), _named("removing a cgroup", path):
            os.rmdir(path)

    def groups(self, path: str) -> list[str]:
        """This group and those in it, the innermost first; none if it is gone."""
        return [folder for folder, _, _ in os.walk(path, topdown=False)]

    def members(self, path: str) -> list[int]:
        """The processes in a group, without those of other pid namespaces."""
        return [pid for pid in map(int, self.read(f"{path}/cgroup.procs").split()) if pid]

    def process(self, pid: int) -> tuple[int, int]:
        """Parent and start time of a process; (0, 0) if it is gone."""
        try:
            fields = self.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return 0, 0
        return int(fields[1]), int(fields[19])

    def is_delegated(self, path: str) -> bool:
        """Whether systemd may be expected to leave what is below alone."""
        if os.geteuid() or not os.path.isdir("/run/systemd/system"):
            return True  # an ordinary user can write only where it was delegated
        for name in ("user.delegate", "trusted.delegate"):
            with contextlib.suppress(OSError):
                if os.getxattr(path, name) == b"1":
                    return True
        return False


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One hierarchy.

    Attributes:
        base: the folder below which groups are made.
        version: 1 or 2.
        gives: which of `KINDS` are had from it: the first two limit, "cpu" counts.
    """

    base: str
    version: int
    gives: frozenset[str]


def find(files: Files) -> tuple[list[Hierarchy], dict[str, str]]:
    """What is mounted here, v2 first, and why a kind is missing. Nothing is proven yet."""
    missing = dict.fromkeys(KINDS, "no cgroup hierarchy that has it is mounted here")
    try:
        bases = _bases(files)
    except (OSError, ValueError) as error:
        return [], dict.fromkeys(KINDS, f"the cgroups of this host cannot be read: {error}")
    found = []
    if (own := bases.pop("", None)) is not None:
        try:
            base, gives = _base(own), frozenset({"cpu"})
            offered = _V2.intersection(files.read(f"{base}/cgroup.controllers").split())
            missing.update(dict.fromkeys(_V2 - offered, f"{base} was not given this controller"))
            try:
                _pass_on(files, base, offered)
                gives |= offered
            except OSError as error:
                missing.update(dict.fromkeys(offered, str(error)))
            found.append(Hierarchy(base, 2, gives))
        except OSError as error:
            missing.update(dict.fromkeys(KINDS, str(error)))
    for base in dict.fromkeys(bases.values()):
        gives = frozenset(_V1[name] for name, where in bases.items() if where == base)
        found.append(Hierarchy(base, 1, gives))
    return found, missing


def _bases(files: Files) -> dict[str, str]:
    """The folder of the host's own group for each controller of v1, and as "" for v2."""
    own = {}
    for line in files.read("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    bases: dict[str, str] = {}
    for line in files.read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        root, point = (re.sub(r"\\(\d{3})", _character, field) for field in left.split(" ")[3:5])
        kind, _, options = right.split(" ")[:3]
        controllers = {"cgroup2": {""}, "cgroup": _V1.keys() & options.split(",")}.get(kind, set())
        for name in controllers:
            path, root = own.get(name, ".."), root.rstrip("/")
            if f"{path}/".startswith(f"{root}/") and ".." not in path.split("/"):  # else: not in this mount
                bases.setdefault(name, (point + path[len(root) :]).rstrip("/"))
    return bases


def _base(own: str) -> str:
    """Where a host that has moved into its leaf makes its groups: beside it."""
    return os.path.dirname(own) if os.path.basename(own) == LEAF else own


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


def _pass_on(files: Files, base: str, offered: frozenset[str]) -> None:
    """Has v2 give these controllers to the groups in `base`."""
    switch = f"{base}/cgroup.subtree_control"
    absent = offered.difference(files.read(switch).split())
    if not absent:
        return
    text = " ".join(f"+{name}" for name in sorted(absent))
    try:
        files.write(switch, text)
        return
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    _ask_leave(files, base)
    leaf = f"{base}/{LEAF}"
    with contextlib.suppress(FileExistsError):
        files.make(leaf)
    try:
        _move(files, base, leaf)
        files.write(switch, text)
    except OSError:
        _move(files, leaf, base)
        files.unmake(leaf)
        raise


def _ask_leave(files: Files, base: str) -> None:
    """Whether the host may rearrange this group: it must be alone in it, and it must be its own.

    Raises:
        OSError: it may not.
    """
    for pid in files.members(base):
        line = pid
        while line not in {0, os.getpid()}:
            line, _ = files.process(line)
        if line == 0 and pid in files.members(base):  # not gone in the meantime
            why = f"process {pid} is in the host's group and not of its making; {_HINT}"
            raise OSError(errno.EBUSY, why, base)
    if not files.is_delegated(base):
        # Root could. But systemd would take the controllers back, and the limits with them.
        raise OSError(errno.EPERM, f"systemd did not delegate the host's group; {_HINT}", base)


def _move(files: Files, here: str, there: str) -> None:
    """Moves all processes; the host first, so that what it starts meanwhile is born there."""
    for _ in range(_ROUNDS):
        pids = files.members(here)
        for pid in sorted(pids, key=lambda pid: pid != os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                files.write(f"{there}/cgroup.procs", str(pid))
        if not pids:
            return
    raise OSError(errno.EBUSY, "processes are started faster than they can be moved", here)
