"""What each limit does to the child that meets it, with real processes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import sandbox_exec as sx
from children import faults, greedy, hosts, stubborn, watch
from children.watch import BY_SIGNAL, CANCELLED, PROMPT, SUCCEEDED, Case, how, limits


@pytest.fixture
def case(profile, tmp_path):
    with Case(profile, tmp_path) as case:
        yield case


TIMEOUT = ("FAILED", "TIMEOUT")
CPU_LIMIT = ("FAILED", "CPU_LIMIT")
MEMORY_LIMIT = ("FAILED", "MEMORY_LIMIT")
FILE_LIMIT = ("FAILED", "FILE_LIMIT")


# Wall -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        stubborn.in_sleep,
        stubborn.in_loop,
        stubborn.deaf,
        stubborn.deaf_in_c,
        stubborn.stopped,
        stubborn.in_shell,
    ],
    ids=lambda target: target.__name__,
)
def test_the_wall_limit_ends_whatever_it_does(case, target):
    outcome = case.run(target, limits=limits(wall_seconds=0.5))
    assert how(outcome) == TIMEOUT
    assert (outcome.exit.signal, outcome.exit.cause) == (9, "limit:wall")
    assert 0.5 <= outcome.usage.wall_seconds < PROMPT
    assert "0.5" in watch.words(outcome)


def test_the_wall_limit_ends_a_command(case):
    outcome = case.sh("echo begun; sleep 600 & sleep 600", limits=limits(wall_seconds=0.5))
    assert how(outcome) == TIMEOUT
    assert outcome.stdout.text == "begun\n"


def test_a_limit_is_not_met_by_those_who_stay_within(case):
    bounds = limits(wall_seconds=30, cpu_seconds=20, memory_bytes=1 << 30, open_files=64, file_bytes=1 << 20)
    outcome = case.run(greedy.spin_for, (0.3,), limits=bounds)
    assert (how(outcome), outcome.value) == (SUCCEEDED, 0.3)
    assert 0.3 <= outcome.usage.cpu_seconds < PROMPT


def test_a_result_at_the_limit_counts_once_or_not_at_all(profile, tmp_path):
    """The two cross in every possible order; each child has one true ending all the same."""
    with Case(profile, tmp_path, max_children=8) as case:
        wall = 0.15
        children = [
            case.launch(
                greedy.sleep_about,
                (wall + (number - 20) / 1000,),
                waiters=1,
                limits=limits(wall_seconds=wall),
            )
            for number in range(40)
        ]
        endings = set()
        for child in children:
            outcome = case.settle(child, within=30)
            endings.add(how(outcome))
            assert (how(outcome), outcome.value) in {(SUCCEEDED, "in time"), (TIMEOUT, None)}
        assert endings == {SUCCEEDED, TIMEOUT}


def test_a_cancel_before_the_wall_limit_is_a_cancel(case):
    child = case.launch(stubborn.deaf_in_c, limits=limits(wall_seconds=0.9, grace_seconds=0.1))
    watch.wait_for_event(child, "here")
    child.cancel()
    assert how(case.settle(child)) == CANCELLED


# Cpu ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (greedy.spin, ()),
        (greedy.spin_in_grandchildren, (2,)),
        (greedy.spin_in_programs, (2,)),
        (greedy.spin_along_a_chain, (100, 0.25)),
    ],
    ids=["itself", "grandchildren", "programs", "chain"],
)
def test_the_cpu_limit_is_the_whole_trees(case, target, arguments):
    outcome = case.run(target, arguments, limits=limits(cpu_seconds=1.0), within=20)
    assert how(outcome) == CPU_LIMIT
    assert outcome.exit.cause == "limit:cpu"
    assert 0.9 <= outcome.usage.cpu_seconds < 2.0  # two cores, and a look every 50 ms
    assert "1 s" in watch.words(outcome)


def test_rlimit_cpu_alone_lets_a_chain_run_on():
    """The control: per process and in whole seconds, no link meets it."""
    code = (
        "import resource, sys; from children import greedy\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n"
        "import os, time\n"
        "for link in range(4):\n"
        "    greedy.spin_for(0.4)\n"
        "    if pid := os.fork():\n"
        "        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    naive = subprocess.run([sys.executable, "-c", code], env=hosts.environment(), check=False)
    assert naive.returncode == 0


def test_a_sleeping_child_meets_no_cpu_limit(case):
    outcome = case.run(greedy.sleep_about, (1.5,), limits=limits(cpu_seconds=0.5))
    assert how(outcome) == SUCCEEDED
    assert outcome.usage.cpu_seconds < 0.5


# Memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (greedy.one_allocation, (10**11,)),
        (greedy.many_allocations, (10**6,)),
        (greedy.many_allocations, (100,)),
    ],
    ids=["at once", "bit by bit", "in small bits"],
)
def test_memory_beyond_the_limit_is_a_memory_error(case, target, arguments):
    outcome = case.run(target, arguments, limits=limits(memory_bytes=200_000_000), within=20)
    assert how(outcome) == MEMORY_LIMIT
    assert outcome.exit.cause == "limit:memory"
    assert outcome.error.type_name.endswith("MemoryError")
    assert "200,000,000" in watch.words(outcome)
    assert outcome.usage.peak_rss_bytes < 200_000_000


def catch_memory_error(size):
    try:
        bytearray(size)
    except MemoryError:
        return "caught"


def test_a_memory_error_that_is_caught_is_the_childs_own_business(case):
    outcome = case.run(catch_memory_error, (10**11,), limits=limits(memory_bytes=200_000_000))
    assert (how(outcome), outcome.value) == (SUCCEEDED, "caught")
    assert case.run(greedy.allocate_in_program, (10**11,), limits=limits(memory_bytes=200_000_000)).value == 1


def test_threads_and_memory_fit_together(case):
    outcome = case.run(greedy.start_threads, (32,), limits=limits(memory_bytes=512 << 20))
    assert (how(outcome), outcome.value) == (SUCCEEDED, 32)


# Files ----------------------------------------------------------------------------------------------


def test_a_descriptor_beyond_the_limit_fails_the_call(case):
    outcome = case.run(greedy.open_many, limits=limits(open_files=32))
    assert how(outcome) == FILE_LIMIT
    assert outcome.exit.cause == "limit:files"
    assert outcome.error.type_name == "builtins.OSError"
    assert os.strerror(errno.EMFILE) in watch.words(outcome)


@pytest.mark.parametrize("size", [1_000, 10_000])
def test_a_file_beyond_the_limit_fails_the_call(case, size):
    outcome = case.run(greedy.write_file, (size,), limits=limits(file_bytes=4_096))
    if size <= 4_096:
        assert (how(outcome), outcome.value) == (SUCCEEDED, size)
        return
    assert how(outcome) == FILE_LIMIT
    assert outcome.exit.cause == "limit:files"
    assert os.strerror(errno.EFBIG) in watch.words(outcome)
    caught = case.run(greedy.write_file, (size, True), limits=limits(file_bytes=4_096))
    assert (how(caught), caught.value) == (SUCCEEDED, errno.EFBIG)


def test_a_command_that_writes_too_much_ends_by_the_limit(case):
    outcome = case.sh("exec head -c 10000 /dev/zero > large", limits=limits(file_bytes=4_096))
    assert how(outcome) == FILE_LIMIT
    assert (outcome.exit.signal, outcome.exit.cause) == (signal.SIGXFSZ, "limit:files")


def test_a_signal_of_the_same_number_without_the_limit_is_a_signal(case):
    outcome = case.sh("kill -XFSZ $$; sleep 60")
    assert (how(outcome), outcome.exit.signal, outcome.exit.cause) == (BY_SIGNAL, signal.SIGXFSZ, "none")


def test_limits_that_were_not_asked_for_are_not_there(case):
    without = case.run(greedy.own_limits).value
    assert without["CORE"] == 0
    assert without["AS"] == without["CPU"] == without["FSIZE"] == -1
    with_all = case.run(
        greedy.own_limits,
        limits=limits(
            cpu_seconds=7.5, memory_bytes=300_000_000, open_files=50, file_bytes=5_000, processes=3, threads=4
        ),
    ).value
    assert (with_all["AS"], with_all["NOFILE"], with_all["FSIZE"]) == (300_000_000, 50, 5_000)
    assert 8 <= with_all["CPU"] <= 9  # the net under the host's own count
    assert with_all["NPROC"] >= 3 + 4


# Processes and threads ------------------------------------------------------------------------------


def nobody():
    """How to run a host as a user whom RLIMIT_NPROC binds: interpreter and options; None where one cannot."""
    if os.getuid():
        return sys.executable, {}
    options = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    here = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in filter(
        None, (sys.executable, shutil.which(here, path=os.defpath), shutil.which("python3", path=os.defpath))
    ):
        try:
            done = subprocess.run(
                [python, "-c", "import sys, sandbox_exec.executor; print(sys.version_info[:2])"],
                env=hosts.environment(),
                capture_output=True,
                text=True,
                check=False,
                **options,
            )
        except OSError:
            continue
        if done.stdout.strip() == str(sys.version_info[:2]):
            return python, options
    return None


def test_too_many_threads_or_processes_fail_the_call(profile, tmp_path):
    found = nobody()
    if found is None:
        pytest.skip("no interpreter here that another user can run; RLIMIT_NPROC does not bind root")
    python, options = found
    argv = [python, *hosts.command("start_too_many", profile, "/")[1:]]
    told = hosts.run("start_too_many", argv=argv, seconds=50, **options)
    assert told["uid"] != 0
    assert told["few"] == ["SUCCEEDED", None, "none", 4]
    assert told["few_processes"] == ["SUCCEEDED", None, "none", 4]
    assert told["beside_others"] == ["SUCCEEDED", None, "none", 4]
    assert told["many"][:3] == ["FAILED", "PROCESS_LIMIT", "limit:processes"]
    assert told["many_processes"][:3] == ["FAILED", "PROCESS_LIMIT", "limit:processes"]


# Output ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 2, 1_000, 100_000])
@pytest.mark.parametrize("written", [0, 1, 500, 999, 1_000, 1_001, 65_536, 1_000_000])
def test_output_is_kept_at_both_ends_and_counted_exactly(case, written, kept):
    outcome = case.run(greedy.print_bytes, (written,), limits=limits(output_bytes=kept))
    assert (how(outcome), outcome.value) == (SUCCEEDED, written)
    out = outcome.stdout
    assert out.total_bytes == written
    assert out.dropped_bytes == max(0, written - kept)
    if written <= kept:
        assert out.head + out.tail == greedy.expected_bytes(0, written)
    else:
        assert out.head == greedy.expected_bytes(0, kept // 2)
        assert out.tail == greedy.expected_bytes(written - kept // 2, written)
        assert str(written - kept) in out.text
    assert outcome.stderr.total_bytes == 0


def test_both_streams_are_kept_apart(case):
    child = case.launch(
        sx.Command(["sh", "-c", "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; echo end"])
    )
    outcome = case.settle(child)
    assert (outcome.stdout.total_bytes, outcome.stderr.total_bytes) == (300_004, 200_000)
    assert outcome.stdout.text.endswith("end\n")


def test_a_child_that_was_cut_short_leaves_what_it_had_printed(case):
    def target():
        import os
        import time

        os.write(1, b"out" * 20_000)
        os.write(2, b"err")
        time.sleep(600)

    outcome = case.run(target, limits=limits(wall_seconds=0.5))
    assert how(outcome) == TIMEOUT
    assert outcome.stdout.text == "out" * 20_000
    assert outcome.stderr.text == "err"


def test_print_is_flushed_before_the_result(case):
    def target():
        import sys

        print("x" * 10_000, end="")
        print("to the other", file=sys.stderr, end="")
        return 1

    outcome = case.run(target)
    assert (outcome.stdout.total_bytes, outcome.stderr.text) == (10_000, "to the other")


# Partial results ------------------------------------------------------------------------------------

CUT_SHORT = {
    "wall": (time.sleep, (600,), {"wall_seconds": 0.5}, TIMEOUT),
    "killed itself": (faults.kill_self, (), {}, BY_SIGNAL),
    "left": (faults.leave_at_once, (0,), {}, ("INTERRUPTED", "NO_RESULT")),
    "raised": (faults.throw, (ValueError("why"),), {}, ("FAILED", "ValueError")),
    "too large": (faults.give_long, (200_000,), {"result_bytes": 100_000}, ("FAILED", "RESULT_TOO_LARGE")),
    "cpu": (greedy.spin, (), {"cpu_seconds": 0.3}, CPU_LIMIT),
    "memory": (greedy.many_allocations, (10**6,), {"memory_bytes": 200_000_000}, MEMORY_LIMIT),
}


@pytest.mark.parametrize("ending", CUT_SHORT)
def test_a_partial_result_is_in_an_outcome_that_was_cut_short(case, ending):
    target, arguments, bounds, expected = CUT_SHORT[ending]
    value = {"so far": [1, 2.5, b"\xff"], "of": 10}
    outcome = case.run(faults.say_partial, (value, target, *arguments), limits=limits(**bounds))
    assert how(outcome) == expected
    assert outcome.partial == value
    assert outcome.value is None


def test_a_partial_result_may_be_large_and_the_last_one_counts(case):
    def target(size):
        import time

        import sandbox_worker as sw

        for number in range(5):
            sw.context().partial([number] * size)
        sw.context().emit("said")
        time.sleep(600)

    child = case.launch(target, (200_000,))
    watch.wait_for_event(child, "said")
    child.kill()
    outcome = case.settle(child)
    assert how(outcome) == CANCELLED
    assert outcome.partial == [4] * 200_000


def test_a_result_leaves_no_partial_behind(case):
    outcome = case.run(faults.say_partial, ("half", faults.give, "whole"))
    assert (outcome.value, outcome.partial) == ("whole", None)


def test_a_killed_child_leaves_its_partial_result(case):
    child = case.launch(faults.say_partial, ("half", time.sleep, 600))
    watch.wait_for_event(child, "said")
    child.kill()
    outcome = case.settle(child)
    assert (how(outcome), outcome.partial) == (CANCELLED, "half")


def test_a_limit_beyond_the_hosts_own_is_refused_before_a_process_exists(profile):
    with sx.SandboxExecutor(profile) as executor:
        with pytest.raises(sx.ConfigError, match=r"open_files=.* hard limit of .*ulimit -Hn"):
            executor.launch(watch.ok, limits=limits(open_files=1 << 40))
        assert executor.statistics()["started"] == 0
