"""How a child starts: on what, with what, and what a target looks like when it gets there."""

import json
import marshal
import os
import socket
import subprocess
import sys

import pytest

import sandbox_exec as sx
from children import started
from sandbox_worker import launcher, protocol

LIST_MODULES = """
import posix, sys
NAMES = sorted(sys.modules)
def run(assignment, own):
    posix.write(3, repr(NAMES).encode())
    posix._exit(0)
"""


def test_nothing_but_built_in_and_frozen_modules_is_loaded_at_ready():
    """The worker's own boot, with a runner that tells what it found."""
    fd = launcher.bundle()
    modules = marshal.loads(os.pread(fd, 1 << 22, 0))
    os.close(fd)
    modules["sandbox_worker.runner"] = "runner", marshal.dumps(compile(LIST_MODULES, "runner", "exec"))
    bundle = os.memfd_create("bundle")
    os.write(bundle, marshal.dumps(modules))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = "import os,sys\nc,b=(os.dup(int(fd)) for fd in sys.argv[1:3])\nos.dup2(c,3);os.dup2(b,4)\n"
    code += "os.set_inheritable(3,True);os.set_inheritable(4,True)\n"
    code += "os.execve(sys.executable,[sys.executable,*sys.argv[3:]],{})"
    fds = [theirs.fileno(), bundle]
    argv = [sys.executable, "-I", "-S", "-c", code, *map(str, fds), *launcher.ARGUMENTS]
    with ours, subprocess.Popen(argv, pass_fds=fds) as process:
        theirs.close()
        os.close(bundle)
        ours.settimeout(30)
        plan = {"result_bytes": 1, "result_items": 1}
        ours.send(protocol.pack(protocol.Down.BOOT, protocol.VERSION, plan))
        ours.send(protocol.pack(protocol.Down.RUN, {}))
        assert json.loads(ours.recv(1000).partition(b"\n")[0]) == {"t": "ready", "version": protocol.VERSION}
        found = set(eval(ours.recv(60_000)))
        process.wait(30)
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", "import sys; print(sorted(sys.modules))"],
        check=True, stdout=subprocess.PIPE, timeout=30,
    )  # fmt: skip
    more = found - set(eval(bare.stdout))
    assert "sandbox_worker.conversation" in more
    import _imp

    ours_too = {name for name in more if name == "sandbox_worker" or name.startswith("sandbox_worker.")}
    assert {
        n for n in more - ours_too if n not in sys.builtin_module_names and not _imp.is_frozen(n)
    } == set()


@pytest.fixture
def executor(profile):
    with sx.SandboxExecutor(profile) as executor:
        yield executor


def test_a_self_contained_function_needs_no_module_of_its_own(executor):
    assert executor.launch(started.modules, ("children.started",)).outcome(30).unwrap() is False


def test_a_function_that_uses_its_module_brings_it_along(executor):
    assert executor.launch(started.uses_a_neighbour, (3,)).outcome(30).unwrap() == "3 neighbours"


def test_by_code_by_reference_and_by_value_give_the_same(executor):
    base = 40

    def closure(more):
        return base + more

    for target in (started.plain, started.referring, closure, started.Callable(40), lambda more: 40 + more):
        assert executor.launch(target, (2,)).outcome(30).unwrap() == 42


def test_defaults_recursion_and_keywords_travel(executor):
    assert executor.launch(started.factorial, (5,)).outcome(30).unwrap() == 120
    assert executor.launch(started.with_defaults, (1,), {"c": 5}).outcome(30).unwrap() == [1, 2, 5]


@pytest.mark.parametrize("name", ["looks_around", "evaluates"])
def test_a_function_that_looks_around_in_its_module_finds_it(executor, name):
    assert executor.launch(getattr(started, name)).outcome(30).unwrap() == "here"


def test_descriptors_are_limited_as_the_host_program_was(executor):
    import resource

    limit = executor.launch(started.descriptor_limit).outcome(30).unwrap()
    with sx.SandboxExecutor("none", max_children=400):
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= limit[0]


def test_a_child_sees_no_descriptor_but_its_own(executor):
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    for fd in held:
        os.set_inheritable(fd, True)
    try:
        assert executor.launch(started.descriptors).outcome(30).unwrap() == [0, 1, 2, 3]
    finally:
        for fd in held:
            os.close(fd)


def test_the_hosts_keys_stay_with_the_host(executor, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "s3cret")
    environment = executor.launch(started.environment, env={"GIVEN": "yes"}).outcome(30).unwrap()
    assert "SOME_API_KEY" not in environment
    assert environment["GIVEN"] == "yes"


def test_an_exception_named_like_one_of_our_endings_is_not_one(executor):
    outcome = executor.launch(started.raises_our_word).outcome(30)
    assert outcome.state is sx.SubagentState.FAILED
    assert outcome.error.classification != "TIMEOUT"
    assert outcome.error.type_name.endswith("TIMEOUT")
    assert outcome.exit.cause == "none"
    assert executor.launch(len, ("ab",)).outcome(30).value == 2
