"""The executor as a user of concurrent.futures knows it, and a child as asyncio knows it."""

import asyncio
import concurrent.futures as cf
import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import pytest

import sandbox_exec as sx
from children import crowd, faults, hosts, stubborn, watch
from children.watch import limits, wait_until

SECONDS = 20


@pytest.fixture
def executor(profile):
    with sx.SandboxExecutor(profile, max_children=4) as made:
        yield made


def held(executor, number=4):
    """Jobs that take every slot."""
    futures = [executor.submit(stubborn.in_sleep) for _ in range(number)]
    for future in futures:
        watch.wait_for_event(future.child, "here")
    return futures


def test_a_result_and_its_child(executor):
    future = executor.submit(pow, 2, 10, mod=1000)
    assert future.result(SECONDS) == 24
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert future.exception() is None
    assert future.child.outcome().value == 24
    assert future.cancel() is False


def test_names_that_the_executor_uses_too_are_the_functions(executor):
    given = {"fn": 1, "self": 2, "profile": "pure", "limits": None, "timeout": 3}
    assert executor.submit(faults.echo_names, **given).result(SECONDS) == given


def test_map_keeps_the_order_and_takes_every_argument_of_the_base_class(executor):
    assert list(executor.map(pow, [2, 3, 4], [5, 2, 1])) == [32, 9, 4]
    assert list(executor.map(abs, range(-9, 0), timeout=SECONDS, chunksize=3)) == [*range(9, 0, -1)]
    assert list(executor.map(abs, [])) == []
    late = executor.map(time.sleep, [60], timeout=0.2)
    with pytest.raises(cf.TimeoutError):
        next(late)
    assert wait_until(lambda: executor.children() == [])  # what nobody can get any more is ended


def test_an_exception_of_the_standard_library_is_caught_by_its_own_name(executor):
    future = executor.submit(faults.divide, 1, 0)
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        future.result(SECONDS)
    assert isinstance(raised.value, sx.ChildFailed)
    assert "in divide" in str(raised.value.__cause__)
    assert future.exception() is raised.value


@pytest.mark.parametrize(
    "name",
    [
        "KeyError", "FileNotFoundError", "UnicodeDecodeError", "UnicodeEncodeError", "ImportError",
        "SyntaxError", "AttributeError", "NameError", "RecursionError", "OSError", "TimeoutError",
        "AssertionError", "StopIteration", "StopAsyncIteration", "ExceptionGroup", "DeprecationWarning",
    ],
)  # fmt: skip
def test_each_builtin_exception_is_one_here_or_plainly_a_failure(executor, name):
    future = executor.submit(faults.raise_builtin, name)
    error = future.exception(SECONDS)
    assert isinstance(error, sx.ChildFailed)
    builtin = getattr(__builtins__, name, None) or __builtins__[name]
    exceptions = {"StopIteration", "StopAsyncIteration", "ExceptionGroup"}
    assert isinstance(error, builtin) == (name not in exceptions)
    assert str(error).startswith(f"child {future.child.id} FAILED, {name}: ")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(twin), str(twin)) == (type(error), str(error))


def test_a_class_of_the_childs_own_is_never_rebuilt(executor):
    error = executor.submit(faults.raise_forged).exception(SECONDS)
    assert type(error) is sx.ChildFailed


def test_a_dead_worker_takes_nothing_else_along(executor):
    victim, others = executor.submit(stubborn.in_sleep), [executor.submit(abs, -n) for n in range(3)]
    watch.wait_for_event(victim.child, "here")
    victim.child._warden._process.signal(9)
    with pytest.raises(sx.ChildInterrupted, match="SIGKILL"):
        victim.result(SECONDS)
    assert [future.result(SECONDS) for future in others] == [0, 1, 2]
    assert executor.submit(abs, -7).result(SECONDS) == 7


def test_a_queued_job_that_is_cancelled_never_starts(executor):
    holders = held(executor)
    queued = [executor.submit(abs, -1) for _ in range(3)]
    assert [future.running() for future in (*holders, *queued)] == [True] * 4 + [False] * 3
    assert queued[1].cancel()
    assert queued[1].cancelled()
    assert queued[1].child.pid is None
    with pytest.raises(cf.CancelledError):
        queued[1].result(0)
    assert cf.wait(queued[1:2], timeout=0).done == {queued[1]}
    for holder in holders:
        holder.child.kill()
    assert [queued[0].result(SECONDS), queued[2].result(SECONDS)] == [1, 1]


def test_a_running_job_is_cancelled_once_its_end_is_proven(executor):
    future = executor.submit(stubborn.in_sleep)
    watch.wait_for_event(future.child, "here")
    pid = future.child.pid
    assert future.cancel()
    with pytest.raises(cf.CancelledError):
        future.result(SECONDS)
    assert future.cancelled()
    assert not os.path.exists(f"/proc/{pid}")
    assert future.cancel()


def test_a_result_that_arrived_before_the_cancel_did_its_work_counts(executor):
    future = executor.submit(stubborn.swallow)
    watch.wait_for_event(future.child, "here")
    assert future.cancel()
    assert future.result(SECONDS) == "finished all the same"
    assert not future.cancelled()


def test_wait_and_as_completed(executor):
    slow, quick, bad = (
        executor.submit(time.sleep, 60),
        executor.submit(abs, -1),
        executor.submit(faults.divide, 1, 0),
    )
    assert cf.wait([slow, quick], return_when=cf.FIRST_COMPLETED, timeout=SECONDS).done == {quick}
    done, pending = cf.wait([slow, bad], return_when=cf.FIRST_EXCEPTION, timeout=SECONDS)
    assert (done, pending) == ({bad}, {slow})
    order = cf.as_completed([slow, quick, bad], timeout=SECONDS)
    assert {next(order), next(order)} == {quick, bad}
    slow.cancel()
    assert next(order) is slow


def test_callbacks_run_in_order_off_the_loop_and_one_that_raises_harms_nobody(executor, caplog):
    story, done = [], threading.Event()
    future = executor.submit(time.sleep, 0.2)
    future.add_done_callback(lambda f: story.append(("first", f.result(), threading.current_thread().name)))
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: done.set())
    assert done.wait(SECONDS)
    assert story == [("first", None, "sandbox-exec callbacks")]
    future.add_done_callback(lambda _: story.append("late"))
    assert story[1:] == ["late"]
    assert "exception calling callback" in caplog.text


def test_a_future_that_its_holder_set_harms_nobody(executor):
    future = executor.submit(time.sleep, 0.2)
    future.set_result(5)
    future.child.outcome(SECONDS)
    assert executor.submit(abs, -1).result(SECONDS) == 1


def test_callbacks_that_exit_cost_no_thread(executor):
    done = threading.Event()
    for _ in range(6):
        executor.submit(abs, 1).add_done_callback(lambda _: sys.exit(1))
    executor.submit(abs, 1).add_done_callback(lambda _: done.set())
    assert done.wait(SECONDS)


def test_callbacks_may_submit_and_wait(executor):
    heard, done = [], threading.Event()

    def again(future):
        heard.append(executor.submit(abs, -future.result()).result(SECONDS))
        if len(heard) == 12:
            done.set()

    for number in range(12):
        executor.submit(abs, number).add_done_callback(again)
    assert done.wait(SECONDS)
    assert sorted(heard) == [*range(12)]


def test_shutdown_finishes_what_was_submitted_and_ends_what_was_launched(profile):
    executor = sx.SandboxExecutor(profile, max_children=2)
    child = executor.launch(stubborn.in_sleep, limits=limits())
    watch.wait_for_event(child, "here")
    futures = [executor.submit(faults.wait_and_give, 0.2, number) for number in range(4)]
    executor.shutdown()
    assert [future.result(0) for future in futures] == [0, 1, 2, 3]
    assert str(child.outcome(0).state) == "CANCELLED"
    for refused in (
        partial(executor.submit, abs, 1),
        partial(executor.launch, abs, (1,)),
        partial(executor.map, abs, [1]),
    ):
        with pytest.raises(RuntimeError, match="shut down"):
            refused()
    executor.shutdown()


def test_shutdown_that_cancels_what_has_not_begun(profile):
    executor = sx.SandboxExecutor(profile, max_children=1)
    first = executor.submit(faults.wait_and_give, 0.5, 1)
    assert wait_until(first.running)
    queued = [executor.submit(abs, -1) for _ in range(3)]
    executor.shutdown(wait=True, cancel_futures=True)
    assert first.result(0) == 1
    assert all(future.cancelled() for future in queued)


def test_shutdown_that_does_not_wait(profile):
    executor = sx.SandboxExecutor(profile)
    future = executor.submit(faults.wait_and_give, 0.5, 1)
    began = time.monotonic()
    executor.shutdown(wait=False)
    assert time.monotonic() - began < 0.4
    assert future.result(SECONDS) == 1


def test_leaving_by_an_exception_ends_everything(profile):
    executor = sx.SandboxExecutor(profile, max_children=1)
    futures = [executor.submit(stubborn.in_sleep) for _ in range(3)]
    watch.wait_for_event(futures[0].child, "here")
    with pytest.raises(LookupError), executor:
        raise LookupError
    assert all(future.cancelled() for future in futures)


def test_shutdown_from_a_callback(profile):
    executor, done = sx.SandboxExecutor(profile), threading.Event()

    def end(_future):
        executor.shutdown()
        done.set()

    executor.submit(abs, 1).add_done_callback(end)
    assert done.wait(SECONDS)


def test_an_executor_that_nobody_holds_finishes_what_was_submitted(profile):
    future = sx.SandboxExecutor(profile).submit(faults.wait_and_give, 0.2, 3)
    gc.collect()
    assert future.result(SECONDS) == 3


def test_many_threads_submit_at_once(executor):
    got = []

    def submit(number):
        got.append(executor.submit(abs, -number).result(SECONDS))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [*range(24)]


# asyncio ----------------------------------------------------------------------------------------------


def test_a_child_and_a_future_can_be_awaited(executor):
    async def main():
        loop = asyncio.get_running_loop()
        assert (await executor.launch(abs, (-3,))).value == 3
        assert await asyncio.wrap_future(executor.submit(abs, -4)) == 4
        assert await loop.run_in_executor(executor, abs, -5) == 5
        children = [executor.launch(abs, (-n,)) for n in range(9)]
        assert [outcome.value for outcome in await asyncio.gather(*children)] == [*range(9)]
        with pytest.raises(ZeroDivisionError):
            await asyncio.wrap_future(executor.submit(faults.divide, 1, 0))
        return await children[0]  # once more

    assert asyncio.run(main()).value == 0


def test_cancelling_the_task_cancels_the_child_that_it_awaits(executor):
    async def main():
        left, ended = (executor.launch(stubborn.in_sleep) for _ in range(2))
        futures = executor.submit(stubborn.in_sleep)
        tasks = [asyncio.ensure_future(left.wait()), asyncio.gather(ended), asyncio.wrap_future(futures)]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert str((await ended).state) == "CANCELLED"
        assert left.alive
        left.kill()
        await left
        with pytest.raises(cf.CancelledError):
            futures.result(SECONDS)

    asyncio.run(main())


def test_an_event_loop_that_is_closed_meanwhile_harms_nobody(executor):
    child = executor.launch(faults.wait_and_give, (0.5, 1))

    async def main():
        task = asyncio.ensure_future(child.wait())
        await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(main())
    assert child.outcome(SECONDS).value == 1


# Where programs live ----------------------------------------------------------------------------------


EXAMPLES = """
import concurrent.futures
import math

PRIMES = [112272535095293, 112582705942171, 115280095190773, 115797848077099, 1099726899285419]

def is_prime(n):
    if n < 2:
        return False
    if n == 2:
        return True
    if n % 2 == 0:
        return False
    for i in range(3, int(math.floor(math.sqrt(n))) + 1, 2):
        if n % i == 0:
            return False
    return True

def load(path, timeout):
    with open(path, "rb") as file:
        return file.read()

PATHS = ["/etc/hosts", "/etc/passwd", "/nowhere/at/all"]

def main():
    with EXECUTOR(max_workers=3) as executor:
        for number, prime in zip(PRIMES, executor.map(is_prime, PRIMES)):
            print("%d is prime: %s" % (number, prime))
    with EXECUTOR(max_workers=5) as executor:
        future_to_path = {executor.submit(load, path, 60): path for path in PATHS}
        lines = []
        for future in concurrent.futures.as_completed(future_to_path):
            path = future_to_path[future]
            try:
                data = future.result()
            except Exception as exc:
                lines.append("%r generated an exception: %s" % (path, isinstance(exc, FileNotFoundError)))
            else:
                lines.append("%r page is %d bytes" % (path, len(data)))
        print("\\n".join(sorted(lines)))
    with EXECUTOR(max_workers=1) as executor:
        future = executor.submit(pow, 323, 1235)
        print(future.result() % 1000003)
    executor = EXECUTOR(max_workers=2)
    futures = [executor.submit(pow, 2, n) for n in range(8)]
    print([f.result() for f in concurrent.futures.wait(futures).done].__len__())
    executor.shutdown(wait=True)
    try:
        executor.submit(pow, 1, 1)
    except RuntimeError:
        print("no more")

if __name__ == "__main__":
    main()
"""


OURS = """
import sandbox_exec
def EXECUTOR(max_workers):
    return sandbox_exec.SandboxExecutor("none", max_workers)
"""


def run(arguments, **options):
    options = {"cwd": None, "stdin": "", **options}
    return subprocess.run(
        [sys.executable, *arguments],
        input=options["stdin"],
        cwd=options["cwd"],
        env=hosts.environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_the_examples_of_the_standard_library_run_unchanged(tmp_path):
    outputs = []
    for name, executor in (
        ("theirs", "EXECUTOR = concurrent.futures.ProcessPoolExecutor"),
        ("ours", OURS),
    ):
        program = tmp_path / f"{name}.py"
        program.write_text(EXAMPLES.replace("\nPRIMES", f"\n{executor}\n\nPRIMES", 1))
        done = run([str(program)])
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert "no more" in outputs[0]


NO_GUARD = """
import sandbox_exec as sx
offset = 40
def add(a, b=lambda: 2): return offset + a + b()
executor = sx.SandboxExecutor("none")
print(executor.submit(add, 0).result(), list(executor.map(lambda n: n + offset, [1, 2])))
"""


def in_a_thread():
    body = textwrap.indent(NO_GUARD.replace("offset =", "global offset\noffset ="), "    ")
    return f"import threading\ndef main():\n{body}\nt = threading.Thread(target=main)\nt.start()\nt.join()\n"


@pytest.mark.parametrize(
    ("program", "arguments", "typed"),
    [
        (NO_GUARD, ["program.py"], ""),
        (in_a_thread(), ["program.py"], ""),
        (f"exec({NO_GUARD!r}, {{'__name__': 'cell'}})", ["program.py"], ""),
        ("", ["-c", NO_GUARD], ""),
        ("", ["-"], NO_GUARD),
        ("", ["-i", "-q"], NO_GUARD.replace("b()\n", "b()\n\n")),
    ],
    ids=["file", "thread", "exec", "-c", "stdin", "interactive"],
)
def test_without_a_guard_from_anywhere(program, arguments, typed, tmp_path):
    (tmp_path / "program.py").write_text(program)
    done = run(arguments, stdin=typed, cwd=tmp_path)
    assert "42 [41, 42]" in done.stdout, done.stderr
    assert done.returncode == 0


AT_EXIT = """
import sandbox_exec as sx
def job(path):
    import time
    time.sleep(0.5)
    open(path, "w").close()
sx.SandboxExecutor("none").submit(job, PATH)
"""


def test_a_program_that_ends_finishes_what_it_submitted(tmp_path):
    done = run(["-c", AT_EXIT.replace("PATH", repr(str(tmp_path / "mark")))])
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "mark").exists()


IMPORT = """
import time
began = time.perf_counter()
import sandbox_exec
sandbox_exec.SandboxExecutor
print(time.perf_counter() - began)
"""


def test_importing_is_quick():
    assert float(run(["-c", IMPORT]).stdout) < 1.5  # not a hang; what it takes is the bench's


# A crowd ----------------------------------------------------------------------------------------------


def test_a_thousand_children_each_met_at_a_random_moment(profile):
    seed = crowd.seed()
    print(f"CROWD_SEED={seed}")
    story = crowd.play(profile, seed, 1_000)
    assert story.children == 1_000
    assert story.wrong == []
    assert story.steers_lost == 0
