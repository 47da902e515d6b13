"""Cgroups over a fake hierarchy of plain files: what is looked for where, and what a figure means."""

import errno
import os
from pathlib import Path

import pytest

from sandbox_exec.engine.cgroups import Cgroups
from sandbox_exec.engine.hierarchies import LEAF, Files

V1 = {
    "memory": {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.memsw.limit_in_bytes": "9223372036854771712",
        "memory.memsw.max_usage_in_bytes": "4096",
        "memory.max_usage_in_bytes": "4096",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0",
    },
    "pids": {"pids.max": "max"},
    "cpuacct": {"cpuacct.usage": "1500000000"},
}
V2 = {
    "": {
        "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000",
        "cgroup.kill": "",
        "cgroup.controllers": "",
        "cgroup.subtree_control": "",
    },
    "memory": {
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.oom.group": "0",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
        "memory.peak": "8192",
    },
    "pids": {"pids.max": "max"},
}


class FakeFiles(Files):
    """Hierarchies of plain files, with as much of the kernel's rules as the code relies on."""

    def __init__(self, root):
        self.root, self.mounts, self.own, self.hierarchies = Path(root), [], [], []
        self.processes = {os.getpid(): (1, 100), 1: (0, 1)}  # pid: parent, start
        self.delegated, self.refuse, self.written = True, {}, []

    def mount(self, controllers, own="/", root="/", point=None, version=1):
        """Mounts a hierarchy; `root` is the folder of it that the mount shows. Gives the host's own group."""
        point = self.root / (point or ("unified" if version == 2 else controllers[0]))
        names = ",".join(controllers)
        kind = f"cgroup cgroup rw,{names}" if version == 1 else "cgroup2 cgroup2 rw"
        shown = str(point).replace(" ", "\\040")
        self.mounts.append(f"30 25 0:26 {root} {shown} rw,relatime shared:4 - {kind}")
        self.own.append(f"{len(self.own)}:{names if version == 1 else ''}:{own}")
        self.hierarchies.append((str(point), controllers, version))
        folder = point / own.removeprefix(root).strip("/")
        folder.mkdir(parents=True)
        self.fill(str(folder), controllers if version == 2 else ())
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        return folder

    def fill(self, folder, given=()):
        _, controllers, version = self.hierarchy(folder)
        files = {"cgroup.procs": "", "tasks": ""}
        for name in controllers if version == 1 else ["", *given]:
            files.update((V1 if version == 1 else V2).get(name, {}))
        if version == 2:
            files["cgroup.controllers"] = " ".join(given)
        for name, text in files.items():
            Path(folder, name).write_text(text)

    def hierarchy(self, path):
        return next(each for each in self.hierarchies if f"{path}/".startswith(f"{each[0]}/"))

    def read(self, path):
        if path == "/proc/self/mountinfo":
            return "\n".join(["20 1 8:1 / / rw - ext4 /dev/sda rw", *self.mounts])
        if path == "/proc/self/cgroup":
            return "\n".join(self.own)
        return super().read(path)

    def write(self, path, text):
        folder, name = os.path.split(path)
        self.written.append((os.path.relpath(path, self.root), text))
        if (reason := self.refuse.get(name)) is not None:
            raise OSError(reason, "refused", path)
        if not os.path.exists(path):
            super().write(path, text)  # it says so
        if name == "cgroup.procs":
            if Path(folder, "cgroup.subtree_control").exists() and self.read(
                f"{folder}/cgroup.subtree_control"
            ):
                raise OSError(errno.EBUSY, "passes controllers on", path)
            for other in Path(self.hierarchy(path)[0]).rglob("cgroup.procs"):
                other.write_text("\n".join(pid for pid in other.read_text().split() if pid != text))
            text = f"{Path(path).read_text()}\n{text}"
        if name == "cgroup.subtree_control":
            if self.members(folder):
                raise OSError(errno.EBUSY, "holds processes", path)
            text = " ".join({*self.read(path).split(), *text.replace("+", "").split()})
        Path(path).write_text(text)

    def make(self, path):
        super().make(path)
        parent = Path(path).parent / "cgroup.subtree_control"
        self.fill(path, parent.read_text().split() if parent.exists() else ())

    def unmake(self, path):
        if os.path.exists(path):
            below = list(Path(path).iterdir())
            if any(each.is_dir() for each in below) or self.members(path):
                raise OSError(errno.EBUSY, "not empty", path)
            for each in below:
                each.unlink()
        super().unmake(path)

    def process(self, pid):
        return self.processes.get(pid, (0, 0))

    def is_delegated(self, path):
        return self.delegated


@pytest.fixture
def files(tmp_path):
    return FakeFiles(tmp_path)


def v1(files, own="/"):
    return [files.mount([name], own) for name in ("memory", "pids", "cpuacct")]


def v2(files, own="/app", given=("memory", "pids"), *, passed_on=True):
    folder = files.mount(["memory", "pids"], own, version=2)
    (folder / "cgroup.controllers").write_text(" ".join(given))
    if passed_on:
        (folder / "cgroup.subtree_control").write_text(" ".join(given))
    return folder


def folders(root):
    return sorted(str(each.relative_to(root)) for each in Path(root).rglob("sandbox-exec*"))


# What is mounted, and where.


def test_v1_one_hierarchy_each(files, tmp_path):
    memory, pids, cpu = v1(files)
    cgroups = Cgroups(files)
    assert (cgroups.gives, cgroups.missing) == ({"memory", "pids", "cpu"}, {})
    assert folders(tmp_path) == []
    group = cgroups.create("sa-0-1", memory_bytes=64 << 20, tasks=7)
    assert group.applied == {"memory", "pids", "cpu"}
    assert (memory / group.name / "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (memory / group.name / "memory.memsw.limit_in_bytes").read_text() == str(64 << 20)
    assert (pids / group.name / "pids.max").read_text() == "7"
    assert (group.cpu_seconds(), group.peak_memory_bytes()) == (1.5, 4096)
    assert (cpu / group.name).is_dir()
    assert group.remove()
    assert group.remove()
    assert folders(tmp_path) == []


def test_v2(files, tmp_path):
    app = v2(files)
    cgroups = Cgroups(files)
    assert (cgroups.gives, cgroups.missing) == ({"memory", "pids", "cpu"}, {})
    group = cgroups.create("sa-0-1", memory_bytes=64 << 20, tasks=7)
    limits = {"memory.max": str(64 << 20), "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "7"}
    assert {name: (app / group.name / name).read_text() for name in limits} == limits
    assert (group.cpu_seconds(), group.peak_memory_bytes()) == (2.5, 8192)
    group.join(4711)
    assert group.pids() == {4711}
    assert not group.remove(attempts=2)
    (app / group.name / "cgroup.procs").write_text("0\n")  # of another pid namespace
    assert group.pids() == set()
    (app / group.name / "cgroup.procs").write_text("")
    assert group.remove()
    assert folders(tmp_path) == []


def test_hybrid_takes_each_from_where_it_is(files, tmp_path):
    unified = files.mount([], version=2)  # mounted, but it has no controllers
    v1(files)
    cgroups = Cgroups(files)
    assert cgroups.gives == {"memory", "pids", "cpu"}
    group = cgroups.create("a", memory_bytes=1 << 20, tasks=1)
    assert group.cpu_seconds() == 2.5  # by v2, whose cgroup.kill comes with it
    assert [path.split("/")[0] for path in folders(tmp_path)] == ["memory", "pids", "unified"]
    assert group.kill()
    assert (unified / group.name / "cgroup.kill").read_text() == "1"
    assert group.remove()


def test_only_what_is_asked_for_is_made(files, tmp_path):
    v1(files)
    group = Cgroups(files).create("a", tasks=3)
    assert group.applied == {"pids", "cpu"}
    assert [path.split("/")[0] for path in folders(tmp_path)] == ["cpuacct", "pids"]
    assert (group.oom_kills(), group.peak_memory_bytes()) == (0, None)


@pytest.mark.parametrize(
    ("own", "root", "found"),
    [
        ("/", "/", ""),
        ("/a/b", "/", "a/b"),
        ("/docker/x", "/docker/x", ""),  # a container without a cgroup namespace
        ("/docker/x/y", "/docker/x", "y"),
        ("/docker/xy", "/docker/x", None),
        ("/elsewhere", "/docker/x", None),
        ("/../..", "/", None),  # joined from outside of the cgroup namespace
        ("/", "/..", None),
    ],
)
def test_groups_are_made_below_the_hosts_own(files, tmp_path, own, root, found):
    files.mount(["pids"], own="/" + (found or ""))
    files.mounts = [f"30 25 0:26 {root} {tmp_path}/pids rw - cgroup cgroup rw,pids"]
    files.own = [f"3:pids:{own}"]
    cgroups = Cgroups(files)
    assert cgroups.gives == (set() if found is None else {"pids"})
    if found is None:
        assert "mounted" in cgroups.missing["pids"]
        return
    group = cgroups.create("a", tasks=1)
    assert (tmp_path / "pids" / found / group.name).is_dir()


def test_mounted_together_in_a_folder_with_a_space(files):
    folder = files.mount(["cpu", "cpuacct", "memory"], point="all of it")
    group = Cgroups(files).create("a", memory_bytes=1 << 20)
    assert group.applied == {"cpu", "memory"}
    assert len(list(folder.rglob("sandbox-exec*"))) == 1


def test_nothing_is_mounted(files):
    cgroups = Cgroups(files)
    assert cgroups.gives == set()
    assert set(cgroups.missing) == {"memory", "pids", "cpu"}
    group = cgroups.create("a", memory_bytes=1, tasks=1)
    assert (group.applied, group.pids(), group.cpu_seconds()) == (set(), set(), None)
    assert not group.kill()  # it holds nothing, so it ended nothing
    assert group.remove()


def test_without_proc(files, monkeypatch):
    def read(path):
        raise FileNotFoundError(errno.ENOENT, "reading: No such file or directory", path)

    monkeypatch.setattr(files, "read", read)
    assert "/proc/self/cgroup" in Cgroups(files).missing["memory"]


# What is refused.


@pytest.mark.parametrize("refused", ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max"])
def test_a_limit_that_cannot_be_set(files, tmp_path, refused):
    v1(files)
    files.refuse = {refused: errno.EACCES}
    cgroups = Cgroups(files)
    kind = refused.split(".")[0]
    assert cgroups.gives == {"memory", "pids", "cpu"} - {kind}
    assert refused in cgroups.missing[kind]
    assert kind not in cgroups.create("a", memory_bytes=1 << 20, tasks=1).applied
    assert folders(tmp_path / kind) == []


def test_a_limit_that_cannot_be_set_any_more(files, tmp_path):
    v1(files)
    cgroups = Cgroups(files)
    files.refuse = {"pids.max": errno.EIO}
    with pytest.raises(OSError, match=r"pids\.max") as raised:
        cgroups.create("a", memory_bytes=1 << 20, tasks=1)
    assert raised.value.errno == errno.EIO
    assert folders(tmp_path) == []


def test_a_name_that_is_taken_is_left_alone(files, tmp_path):
    v1(files)
    cgroups = Cgroups(files)
    group = cgroups.create("a", tasks=1)
    with pytest.raises(FileExistsError, match="making a cgroup"):
        cgroups.create("a", tasks=1)
    assert len(folders(tmp_path)) == 2
    assert group.remove()


def test_errors_name_file_and_step(files):
    v1(files)
    group = Cgroups(files).create("a", tasks=1)
    assert group.remove()
    with pytest.raises(FileNotFoundError, match=r"writing '12': .*cgroup\.procs"):
        group.join(12)


# On v2: passing controllers on.


def test_v2_the_host_moves_into_a_leaf(files, tmp_path):
    app, started = v2(files, passed_on=False), 4712
    files.processes |= {4711: (os.getpid(), 1), started: (4711, 1)}
    (app / "cgroup.procs").write_text(f"{started}\n{os.getpid()}\n4711")
    cgroups = Cgroups(files)
    assert (cgroups.gives, cgroups.missing) == ({"memory", "pids", "cpu"}, {})
    assert set(files.members(f"{app}/{LEAF}")) == {os.getpid(), 4711, started}
    assert files.written[1] == (
        f"unified/app/{LEAF}/cgroup.procs",
        str(os.getpid()),
    )  # what it starts follows
    files.own = [f"0::/app/{LEAF}"]
    again = Cgroups(files)  # from inside the leaf, as a copy of the host would be
    assert again.gives == cgroups.gives
    group = again.create("a", memory_bytes=1 << 20)
    assert (app / group.name).is_dir()
    assert group.remove()
    assert folders(tmp_path) == [f"unified/app/{LEAF}"]


def test_v2_beside_strangers_nothing_moves(files, tmp_path):
    app = v2(files, passed_on=False)
    files.processes[4711] = (1, 1)
    (app / "cgroup.procs").write_text(f"{os.getpid()}\n4711")
    cgroups = Cgroups(files)
    assert cgroups.gives == {"cpu"}  # it needs no controller
    assert "process 4711" in cgroups.missing["memory"]
    assert "Delegate=yes" in cgroups.missing["pids"]
    assert set(files.members(str(app))) == {os.getpid(), 4711}
    assert folders(tmp_path) == []


def test_v2_one_that_has_gone_is_no_stranger(files, monkeypatch):
    app = v2(files, passed_on=False)
    (app / "cgroup.procs").write_text(f"{os.getpid()}\n4711")

    def process(pid):
        if pid == 4711:
            (app / "cgroup.procs").write_text(str(os.getpid()))
        return FakeFiles.process(files, pid)

    monkeypatch.setattr(files, "process", process)
    assert Cgroups(files).gives == {"memory", "pids", "cpu"}


def test_v2_one_that_cannot_be_looked_at_is_a_stranger(files):
    app = v2(files, passed_on=False)
    (app / "cgroup.procs").write_text(f"{os.getpid()}\n4711")  # /proc is mounted with hidepid
    assert "process 4711" in Cgroups(files).missing["memory"]


def test_v2_root_under_systemd_needs_the_delegation(files, tmp_path):
    v2(files, passed_on=False)
    files.delegated = False
    cgroups = Cgroups(files)
    assert cgroups.gives == {"cpu"}
    assert "did not delegate" in cgroups.missing["memory"]
    assert folders(tmp_path) == []


def test_v2_when_it_was_in_vain_the_host_moves_back(files, tmp_path, monkeypatch):
    app = v2(files, passed_on=False)
    answers = iter([errno.EBUSY, errno.ENOENT])
    write = files.write

    def refusing(path, text):
        if path.endswith("subtree_control"):
            raise OSError(next(answers), "refused", path)
        write(path, text)

    monkeypatch.setattr(files, "write", refusing)
    cgroups = Cgroups(files)
    assert cgroups.gives == {"cpu"}
    assert "subtree_control" in cgroups.missing["memory"]
    assert files.members(str(app)) == [os.getpid()]
    assert folders(tmp_path) == []


def test_v2_a_controller_that_the_host_was_not_given(files):
    v2(files, given=("pids",))
    cgroups = Cgroups(files)
    assert cgroups.gives == {"pids", "cpu"}
    assert "was not given" in cgroups.missing["memory"]


# What a figure means.


FULL, NEARLY, FAR = 64 << 20, (64 << 20) - 4096, 60 << 20


@pytest.mark.parametrize(
    ("peak", "peak_with_swap", "control", "kills"),
    [
        (0, 0, "oom_kill_disable 0\nunder_oom 0\noom_kill 0", 0),
        (FAR, FAR, "oom_kill 1", 0),  # the machine's want of memory, not its own
        (FULL, FULL, "oom_kill 0", 0),
        (FULL, FULL, "oom_kill_disable 0\nunder_oom 1\noom_kill 2", 2),
        (NEARLY, 0, "oom_kill 1", 1),
        (FAR, FULL, "oom_kill 1", 1),  # the rest was swapped out
        (FULL, FULL, "oom_kill_disable 0\nunder_oom 0", 0),  # before Linux 4.13
    ],
)
def test_oom_kills_of_v1(files, peak, peak_with_swap, control, kills):
    memory, *_ = v1(files)
    group = Cgroups(files).create("a", memory_bytes=FULL)
    folder = memory / group.name
    (folder / "memory.max_usage_in_bytes").write_text(str(peak))
    (folder / "memory.memsw.max_usage_in_bytes").write_text(str(peak_with_swap))
    (folder / "memory.oom_control").write_text(control)
    assert group.oom_kills() == kills


@pytest.mark.parametrize(
    ("events", "kills"),
    [("oom 0\noom_kill 1", 0), ("max 40\noom 0\noom_kill 0", 0), ("max 40\noom 1\noom_kill 3", 3)],
)
def test_oom_kills_of_v2(files, events, kills):
    app = v2(files)
    group = Cgroups(files).create("a", memory_bytes=1 << 20)
    (app / group.name / "memory.events").write_text(events)
    assert group.oom_kills() == kills


def test_where_swap_is_not_counted(files, monkeypatch):
    monkeypatch.delitem(V1["memory"], "memory.memsw.limit_in_bytes")
    monkeypatch.delitem(V1["memory"], "memory.memsw.max_usage_in_bytes")
    v1(files)
    group = Cgroups(files).create("a", memory_bytes=1 << 20)
    assert "memory" in group.applied
    assert group.oom_kills() == 0


def test_an_inherited_ban_on_killing_is_lifted(files, monkeypatch):
    monkeypatch.setitem(V1["memory"], "memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0")
    v1(files)
    group = Cgroups(files).create("a", memory_bytes=1 << 20)
    assert (f"memory/{group.name}/memory.oom_control", "0") in files.written


def test_a_kernel_without_a_peak(files, monkeypatch):
    monkeypatch.delitem(V2["memory"], "memory.peak")
    v2(files)
    assert Cgroups(files).create("a", memory_bytes=1 << 20).peak_memory_bytes() is None


@pytest.mark.parametrize("mounted", [v1, v2], ids=["v1", "v2"])
def test_removed_figures_are_none(files, mounted):
    mounted(files)
    group = Cgroups(files).create("a", memory_bytes=1 << 20, tasks=2)
    assert group.remove()
    assert (group.cpu_seconds(), group.peak_memory_bytes(), group.oom_kills()) == (None, None, 0)
    assert group.pids() == set()


# What dead hosts left.


def test_only_what_dead_hosts_of_this_namespace_left_is_removed(files, tmp_path):
    memory, pids, _ = v1(files)
    here, me = os.stat("/proc/self/ns/pid").st_ino, os.getpid()
    files.processes[7] = (1, 70)
    stay = [
        f"sandbox-exec-{here}-{me}-100-sa-0-1",
        f"sandbox-exec-{here}-7-70-sa-0-1",
        f"sandbox-exec-{here + 1}-8-80-sa-0-1",
        LEAF,
        "sandbox-exec-of-somebody",
    ]
    go = [f"sandbox-exec-{here}-7-69-sa-0-1", f"sandbox-exec-{here}-8-80-sa-0-1-with-dashes"]
    for name in stay + go:
        files.make(f"{memory}/{name}")
        files.make(f"{pids}/{name}")
    files.make(f"{memory}/{go[0]}/made-by-the-child")
    Path(pids, go[1], "cgroup.procs").write_text("12")  # not empty
    Cgroups(files)
    assert folders(memory) == sorted(stay)
    assert folders(pids) == sorted([*stay, go[1]])
