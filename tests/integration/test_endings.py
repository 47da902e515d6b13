"""How a child can end, row by row of the table of endings, with real processes."""

import collections
import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

import leaks
import sandbox_exec as sx
from children import faults, greedy, hosts, stubborn, watch
from children.watch import (
    BY_SIGNAL,
    CANCELLED,
    NO_RESULT,
    SUCCEEDED,
    Case,
    alive_with,
    how,
    limits,
    wait_until,
)


@pytest.fixture
def case(profile, tmp_path):
    with Case(profile, tmp_path) as case:
        yield case


def failed(word):
    return "FAILED", word


# The target's own word ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        "",
        "text",
        b"\0\xff",
        [],
        (1, [2, {"x": {3, "four"}}]),
        {(1, 2): None},
        "\udcff",
        10**4000,
    ],
    ids=repr,
)
def test_what_the_target_returns_is_the_value(case, value):
    outcome = case.run(faults.give, (value,))
    assert how(outcome) == SUCCEEDED
    assert outcome.value == value
    assert type(outcome.value) is type(value)
    assert outcome.unwrap() == value
    assert (outcome.exit.code, outcome.exit.signal, outcome.exit.cause) == (0, None, "none")
    assert outcome.started_at <= outcome.completed_at


@pytest.mark.parametrize("arguments", [(), (None,), (0,)], ids=str)
def test_an_exit_without_complaint_is_a_success(case, arguments):
    outcome = case.run(faults.leave, arguments)
    assert (how(outcome), outcome.value) == (SUCCEEDED, None)


@pytest.mark.parametrize("argument", [1, "text", 256, True, -1, 3.5, ["list"], 0.0], ids=repr)
def test_an_exit_with_a_complaint_is_a_failure(case, argument):
    outcome = case.run(faults.leave, (argument,))
    assert how(outcome) == failed("SystemExit")
    assert outcome.error.message == str(argument)
    assert outcome.error.type_name == "builtins.SystemExit"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError("why"), "builtins.ValueError"),
        (KeyError("key"), "builtins.KeyError"),
        (KeyboardInterrupt("by hand"), "builtins.KeyboardInterrupt"),
        (GeneratorExit("odd"), "builtins.GeneratorExit"),
        (BaseException("bare"), "builtins.BaseException"),
        (FileNotFoundError(2, "none", "name"), "builtins.FileNotFoundError"),
        (MemoryError("without a limit"), "builtins.MemoryError"),
        (ExceptionGroup("two", [ValueError("one"), TypeError("other")]), "builtins.ExceptionGroup"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_target_raises_is_told(case, error, name):
    outcome = case.run(faults.throw, (error,))
    assert how(outcome) == failed(name.partition(".")[2])
    assert outcome.error.type_name == name
    assert outcome.error.message == str(error)
    assert "raise error" in outcome.error.traceback_text
    assert "sandbox_worker" not in outcome.error.traceback_text
    with pytest.raises(sx.ChildFailed, match=name.partition(".")[2]) as raised:
        outcome.unwrap()
    assert "raise error" in str(raised.value.__cause__)


@pytest.mark.parametrize(
    ("cls", "classification", "text"),
    [
        ("DeafText", "DeafText", "RuntimeError"),
        ("WrongText", "WrongText", "TypeError"),
        ("LeavingText", "LeavingText", "SystemExit"),
        ("HostileNumber", "HostileNumber", ""),
        ("HostileEverything", "HostileEverything", ""),
        ("NamelessClass", "NamelessClass", ""),
        ("HostileCode", "HostileCode", "1"),
    ],
)
def test_a_hostile_exception_is_still_a_failure(case, cls, classification, text):
    outcome = case.run(faults.throw_class, (cls, 1))
    assert how(outcome) == failed(classification)
    assert text in outcome.error.message


@pytest.mark.parametrize(
    ("target", "arguments", "classification", "text"),
    [
        (faults.throw_bytes_path, (), "FileNotFoundError", "No such file"),
        (faults.throw_surrogate, (), "ValueError", r"\udcff"),
        (faults.throw_long, (10_000_000,), "ValueError", "xxxx"),
        (faults.throw_deep, (900,), "ValueError", "the bottom"),
        (faults.recurse_for_ever, (), "RecursionError", "maximum recursion depth"),
        (faults.throw_chain, (2_000,), "ValueError", "xxxx"),
        (faults.throw_long_name, (), "N" * 200, "long"),
        (faults.throw_hostile_name, (), 'A"\n}', "quotes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_exception_of_any_size_and_alphabet_is_told(case, target, arguments, classification, text):
    outcome = case.run(target, arguments, within=20)
    assert how(outcome) == failed(classification)
    assert text in outcome.error.message
    assert len(outcome.error.message) <= 4_000
    assert text in outcome.error.traceback_text
    assert len(outcome.error.traceback_text) <= 50_000


@pytest.mark.parametrize(
    ("target", "arguments", "bounds"),
    [
        (faults.give_long, (2_000,), {"result_bytes": 1_000}),
        (faults.give_many, (2_000,), {"result_items": 1_000}),
    ],
    ids=["bytes", "items"],
)
def test_a_result_above_its_bound_is_refused_with_size_and_limit(case, target, arguments, bounds):
    outcome = case.run(target, arguments, limits=limits(**bounds))
    assert how(outcome) == failed("RESULT_TOO_LARGE")
    assert "1000" in outcome.error.message
    assert "200" in outcome.error.message
    assert case.run(target, (900,), limits=limits(**bounds)).state is sx.SubagentState.SUCCEEDED


def test_a_result_that_cannot_travel_is_refused_with_the_path(case, tmp_path):
    trace = tmp_path / "unpickled"
    outcome = case.run(faults.give_trap, (str(trace),))
    assert how(outcome) == failed("RESULT_NOT_SERIALIZABLE")
    assert "RESULT_NOT_SERIALIZABLE at [3].x" in outcome.error.message
    assert not trace.exists()

    outcome = case.run(faults.give_cycle)
    assert how(outcome) == failed("RESULT_NOT_SERIALIZABLE")
    assert "[1].again" in outcome.error.message

    outcome = case.run(faults.give, (collections.OrderedDict(x=1),))
    assert how(outcome) == failed("RESULT_NOT_SERIALIZABLE")
    assert "OrderedDict" in outcome.error.message


def test_only_one_of_two_copies_speaks_for_the_child(case):
    outcome = case.run(faults.fork_and_return)
    assert (how(outcome), outcome.value) == (SUCCEEDED, "child")
    for then, arguments in (
        (faults.throw, (ValueError("of the copy"),)),
        (faults.leave, (1,)),
        (faults.leave_at_once, (1,)),
        (faults.kill_self, ()),
        (faults.say_partial, (1, faults.give, 2)),
        (faults.give_long, (10**7,)),
    ):
        outcome = case.run(faults.fork_and, (then, *arguments))
        assert (how(outcome), outcome.value) == (SUCCEEDED, "child")
        assert "of the copy" not in outcome.stderr.text


def test_a_copy_that_stays_ends_with_the_child(case):
    outcome = case.run(faults.fork_and_stay)
    assert (how(outcome), outcome.value) == (SUCCEEDED, "child")


def leave_threads():
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(600,)).start()
    print("flushed", end="")
    return 1


def test_threads_left_behind_keep_nobody(case):
    outcome = case.run(leave_threads)
    assert (how(outcome), outcome.value) == (SUCCEEDED, 1)
    assert outcome.stdout.text == "flushed"


# The process's end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_leaving_without_a_result_is_an_interruption(case, code):
    outcome = case.run(faults.leave_at_once, (code,))
    assert how(outcome) == NO_RESULT
    assert (outcome.exit.code, outcome.exit.signal) == (code, None)
    assert f"exit code {code}" in watch.words(outcome)
    with pytest.raises(sx.ChildInterrupted):
        outcome.unwrap()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_of_its_own_ends_it_by_that_signal(case, number):
    outcome = case.run(faults.kill_self, (int(number),))
    assert how(outcome) == BY_SIGNAL
    assert (outcome.exit.code, outcome.exit.signal) == (None, number)


@pytest.mark.parametrize(
    ("target", "number"),
    [
        (faults.abort, signal.SIGABRT),
        (faults.alarm, signal.SIGALRM),
        (faults.read_address_zero, signal.SIGSEGV),
    ],
    ids=["abort", "alarm", "segfault"],
)
def test_a_fault_ends_it_by_its_signal(case, target, number):
    outcome = case.run(target)
    assert (how(outcome), outcome.exit.signal) == (BY_SIGNAL, number)


def test_a_process_that_became_another_program_has_no_result(case):
    outcome = case.run(faults.become, ("/bin/sh", "-c", "echo elsewhere; exit 4"))
    assert how(outcome) == NO_RESULT
    assert outcome.exit.code == 4
    assert outcome.stdout.text == "elsewhere\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_child_killed_from_outside_is_told_as_that(case, number):
    child = case.launch(stubborn.in_loop)
    watch.wait_for_event(child, "here")
    os.kill(child.pid, number)
    outcome = case.settle(child)
    assert (how(outcome), outcome.exit.signal) == (BY_SIGNAL, number)
    assert child.pid is not None


def test_a_kill_that_comes_when_all_is_over_is_no_error(case):
    """It found the descriptors closed (EBADF), between the loop's last step and the caller's own."""
    child = case.launch(stubborn.in_loop)
    watch.wait_for_event(child, "here")
    warden = child._warden
    child.kill()
    case.settle(child)
    warden.strike()
    assert child.kill() is False


def test_a_child_whose_init_is_killed_from_outside_is_told_as_killed(case):
    child = case.launch(stubborn.in_shell)
    spawned = watch.wait_for_event(child, "spawned").data["pid"]
    watch.wait_for_event(child, "here")
    assert wait_until(lambda: len(case.tree(child)) >= 3)
    os.kill(spawned, signal.SIGKILL)
    outcome = case.settle(child)
    assert (how(outcome), outcome.exit.signal) == (BY_SIGNAL, 9)


def test_a_child_that_closes_its_channel_and_goes_on_is_ended(case):
    outcome = case.run(faults.close_channel, (60,))
    assert how(outcome) == NO_RESULT
    assert "channel" in watch.words(outcome)


def test_a_child_that_closes_its_channel_and_returns_has_no_result(case):
    assert how(case.run(faults.close_channel, (0,))) == NO_RESULT


# Commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 3, 126, 255])
def test_a_command_ends_by_its_exit_code(case, code):
    outcome = case.sh(f"echo out; echo err >&2; exit {code}")
    assert how(outcome) == (failed("EXIT_CODE") if code else SUCCEEDED)
    assert (outcome.exit.code, outcome.exit.signal, outcome.value) == (code, None, None)
    assert (outcome.stdout.text, outcome.stderr.text) == ("out\n", "err\n")
    if code:
        assert f"exit code {code}" in watch.words(outcome)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGPIPE, signal.SIGINT]
)
def test_a_command_ends_by_its_signal(case, number):
    outcome = case.sh(f"kill -{int(number)} $$; sleep 60")
    assert (how(outcome), outcome.exit.signal) == (BY_SIGNAL, number)


def test_a_command_that_cannot_be_started_is_a_failure(case, tmp_path):
    outcome = case.run(sx.Command(["no-such-program"]))
    assert how(outcome) == failed("FileNotFoundError")
    assert "no-such-program" in outcome.error.message
    for name, mode, text, error in (
        ("forbidden", 0o600, "#!/bin/sh\n", "PermissionError"),
        ("nonsense", 0o700, "\0\1\2\3", "OSError"),
        ("lost", 0o700, "#!/no/such/interpreter\n", "FileNotFoundError"),
    ):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        assert how(case.run(sx.Command([str(path)]))) == failed(error)


@pytest.mark.parametrize("stdin", [None, b"", "", b"\0\xff" * 10, "text \N{SNAKE} \udcff", b"x" * 3_000_000])
def test_input_is_fed_and_then_ends(case, stdin):
    expected = (stdin or "").encode("utf-8", "surrogateescape") if isinstance(stdin, str | None) else stdin
    command = case.launch(sx.Command(["cat"]), stdin=stdin, limits=limits(output_bytes=1_000_000))
    function = case.launch(greedy.read_input, stdin=stdin)
    outcome = case.settle(command)
    assert outcome.stdout.total_bytes == len(expected)
    assert outcome.stdout.head == expected[:500_000]
    assert case.settle(function).value == expected


def test_input_that_is_not_there_is_at_its_end_at_once(case):
    assert how(case.run(greedy.read_line)) == failed("EOFError")
    assert case.run(greedy.read_line, stdin="one\ntwo\n").value == "one"


def test_input_that_nobody_reads_keeps_nobody(case):
    assert case.run(faults.give, (1,), stdin=b"x" * 3_000_000).value == 1
    assert how(case.run(sx.Command(["true"]), stdin=b"x" * 3_000_000)) == SUCCEEDED


# Around it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ignored", "thief"])
def test_a_stolen_status_changes_no_ending(profile, way):
    told = hosts.run("have_statuses_stolen", profile, way, seconds=40)["told"]
    each = [
        ["INTERRUPTED", "SIGNAL", None, 9, "none"],
        ["INTERRUPTED", "SIGNAL", None, 6, "none"],
        ["INTERRUPTED", "NO_RESULT", 3, None, "none"],
        ["SUCCEEDED", None, 0, None, "none"],
        ["FAILED", "EXIT_CODE", 5, None, "none"],
        ["INTERRUPTED", "SIGNAL", None, 15, "none"],
    ]
    assert told == [*each * 10, ["CANCELLED", "CANCELLED", None, 9, "none"]]


def made_by_launchers():
    """The launcher, and clones that wait or became a child's init: pid -> whether it is pid 1 of its own."""
    found = {}
    for pid in leaks._descendants(os.getpid()):
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text()
            if b"sandbox_worker.launcher import main" in argv:
                (numbers,) = [line for line in status.splitlines() if line.startswith("NSpid:")]
                found[pid] = len(numbers.split()) > 2
    return found


def kill_launcher():
    """Kills the launcher; 0 if there is none, because nothing has been missing since the last one died."""
    launchers = [pid for pid, is_init in made_by_launchers().items() if not is_init]
    for pid in launchers:
        os.kill(pid, signal.SIGKILL)
    return len(launchers)


def test_the_launcher_may_die_while_children_run(case):
    children = [case.launch(target) for target in (stubborn.in_sleep, stubborn.in_loop, stubborn.in_shell)]
    late = case.launch(greedy.sleep_about, (1.0,))
    for child in children:
        watch.wait_for_event(child, "here")
    watch.wait_for_event(late, "running")
    assert kill_launcher() == 1
    assert case.run(watch.ok).value == 1
    assert case.settle(late).value == "in time"
    assert all(child.alive for child in children)
    assert all(case.tree(child) for child in children)
    for child in children:
        child.kill()
        assert how(case.settle(child)) == CANCELLED


def test_the_launcher_may_die_while_launches_wait(profile, tmp_path):
    with Case(profile, tmp_path, max_children=64) as case:
        assert case.run(watch.ok).value == 1
        killed = 0
        for pause in (0.0, 0.01, 0.02, 0.05):
            children = [case.launch(faults.give, (number,), waiters=0) for number in range(40)]
            time.sleep(pause)
            killed += kill_launcher()
            outcomes = [case.settle(child, within=20) for child in children]
            assert [how(outcome) for outcome in outcomes] == [SUCCEEDED] * 40
            assert [outcome.value for outcome in outcomes] == list(range(40))
        assert killed


def kill_and_see(pids):
    """Kills them and waits until they are dead: zombies, whom nobody has waited for, or less."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert watch.wait_until(lambda: not set(pids) & set(made_by_launchers()))


def test_clones_that_wait_may_die(case):
    """They are made ahead; none of them is a child yet."""
    for _ in range(3):
        assert case.run(watch.ok).value == 1
        waiting = watch.wait_until(lambda: [pid for pid, is_init in made_by_launchers().items() if is_init])
        kill_and_see(waiting)
        children = [case.launch(faults.give, (number,), waiters=0) for number in range(8)]
        assert [case.settle(child).value for child in children] == list(range(8))


def test_launcher_and_clones_may_die_together(case):
    for _ in range(3):
        assert case.run(watch.ok).value == 1
        kill_and_see(made_by_launchers())
        children = [case.launch(faults.give, (number,), waiters=0) for number in range(8)]
        assert [case.settle(child).value for child in children] == list(range(8))


def test_children_do_not_outlive_a_killed_host(profile, tmp_path):
    kinds = "loop,loop,loop,deaf,sleep,shell,program,stopped"
    with hosts.started("hold_children", profile, tmp_path, kinds) as (host, told):
        assert len(told["pids"]) == 8
        assert wait_until(lambda: len(alive_with(str(tmp_path))) >= 8 + 2)  # and the sleeps
        host.kill()
        host.wait()
        wait_until(lambda: not alive_with(str(tmp_path)), 2)
        assert watch.end_with(str(tmp_path)) == {}
        assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in told["pids"]), 2)


@pytest.mark.parametrize("way", ["exit", "exception", "with"])
def test_children_end_with_a_program_that_knows_no_shutdown(profile, tmp_path, way):
    code = 3 if way == "exit" else 1
    argv = hosts.command("end_without_shutdown", profile, tmp_path, way)
    done = subprocess.run(
        argv, env=hosts.environment(), capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == code, done.stderr
    assert watch.end_with(str(tmp_path)) == {}
    errors = [line for line in done.stderr.splitlines() if line and not line.startswith((" ", "Traceback"))]
    assert errors == ([] if way == "exit" else ["LookupError: of the program's own"])


def test_a_copy_of_the_host_holds_nothing(profile):
    told = hosts.run("fork_with_children", profile)
    assert told["copy"] == "refused, own gives 7"
    assert told["ending"] == ["INTERRUPTED", "SIGNAL", None, 9, "none"]
    assert told["delay"] < 1.0  # with a channel held by the copy, it was 1.5 s
    assert told["after"] == 2


@pytest.mark.parametrize("when", ["cold", "warm", "contested"])
def test_descriptors_may_run_out_during_a_launch(profile, when):
    told = hosts.run("run_out_of_descriptors", profile, when, seconds=50)
    endings = [tuple(ending) for ending in told["endings"]]
    assert set(endings) <= {SUCCEEDED, failed("LAUNCH_FAILED"), ("LaunchError", None)}
    assert endings[0] != SUCCEEDED
    assert when == "contested" or endings[-1] == SUCCEEDED
    assert told["before"] == told["after"]
