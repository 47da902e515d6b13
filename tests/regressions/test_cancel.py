"""A cancel is heard by whom it concerns, climbs as far as it must, and leaves nobody working on."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import anyio
import pytest

from children import hosts, stubborn, watch
from children.watch import CANCELLED, GRACE, PROMPT, Case, alive_with, how, limits, regression, wait_until

DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


@regression("dask/distributed#1303")
def test_who_handles_sigterm_himself_is_ended_all_the_same(case):
    child = case.launch(stubborn.deaf, limits=limits())
    watch.wait_for_event(child, "here")
    began = time.monotonic()
    assert child.cancel("no longer wanted")
    outcome = case.settle(child)
    took = time.monotonic() - began
    assert how(outcome) == CANCELLED
    assert (outcome.exit.signal, outcome.exit.code) == (signal.SIGKILL, None)
    assert watch.signals_sent(child) == ["SIGTERM", "SIGKILL"]
    assert 2 * GRACE - 0.01 < took < PROMPT

    # Who only ever sends SIGTERM waits for ever:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=-1) as naive:
        assert naive.stdout.readline() == b"1\n"
        naive.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            naive.wait(0.3)
        naive.kill()


@pytest.mark.parametrize("target", ["lambda", "in_loop", "deaf", "deaf_in_c", "in_subprocess", "in_shell"])
@regression("huggingface/smolagents#2464")
def test_a_time_limit_waits_for_nobody(case, target):
    chosen = (lambda: time.sleep(600)) if target == "lambda" else getattr(stubborn, target)
    began = time.monotonic()
    child = case.launch(chosen, limits=limits(wall_seconds=1))
    outcome = case.settle(child)
    assert 0.9 < time.monotonic() - began < PROMPT
    assert how(outcome) == ("FAILED", "TIMEOUT")
    assert outcome.exit.cause == "limit:wall"
    assert "1 s" in outcome.error.message
    assert not os.path.exists(f"/proc/{child.pid}")


def touch_and_stay(path):
    with open(path, "w"):
        time.sleep(600)


@pytest.mark.parametrize("way", ["oldest first", "newest first", "futures"])
@regression("noxdafox/pebble#144")
def test_what_is_cancelled_before_its_start_never_starts(report, profile, tmp_path, way):
    folder = tmp_path / "touched"
    folder.mkdir()
    with Case(profile, tmp_path, max_children=2) as case:
        futures, children = [], []
        for number in range(200):
            arguments = (str(folder / f"f{number}"),)
            if way == "futures":
                futures.append(case.submit(touch_and_stay, *arguments, waiters=0))
                children.append(futures[-1].child)
            else:
                children.append(
                    case.launch(touch_and_stay, arguments, waiters=0, profile=profile, limits=limits())
                )
        assert case.executor.statistics()["queued"] == 198
        for one in futures[::-1] or (children if way == "oldest first" else children[::-1]):
            assert one.cancel()
        outcomes = [case.settle(child, within=50) for child in children]
        assert {how(outcome) for outcome in outcomes} == {CANCELLED}
        ran = [number for number, child in enumerate(children) if "running" in watch.event_kinds(child)]
        if way != "oldest first":  # there a slot falls free while others are still to be cancelled
            assert set(ran) <= {0, 1}
            assert [child.pid for child in children[2:]] == [None] * 198
        assert len(ran) < 200
        assert {int(name[1:]) for name in os.listdir(folder)} <= set(ran)
        assert all(future.cancelled() for future in futures)


WAYS_OUT = {  # exit code, and what the program's last words are
    "with": (1, ["LookupError: of the program's own"]),
    "exception": (1, ["LookupError: of the program's own"]),
    "exit": (3, []),
    "exit in with": (3, []),
    "sigterm": (-signal.SIGTERM, []),
    "sigterm handled": (143, []),
    "thread": (0, ["Exception in thread of its own:", "LookupError: of the program's own"]),
}


@pytest.mark.parametrize("way", WAYS_OUT)
@regression("NousResearch/hermes-agent#26315")
def test_children_end_with_their_program_however_it_ends(report, profile, tmp_path, way):
    code, words = WAYS_OUT[way]
    with hosts.started("end_without_shutdown", profile, tmp_path, way, stderr=-1) as (host, told):
        if way.startswith("sigterm"):
            assert len(alive_with(str(tmp_path))) >= 3
            host.terminate()
        said = host.communicate(timeout=20)[1]
        assert host.returncode == code, said
        # A program that a signal ends has no moment to wait for its children's end.
        assert wait_until(lambda: not alive_with(str(tmp_path))), watch.end_with(str(tmp_path))
        assert not os.path.exists(f"/proc/{told['pid']}")
    lines = [line for line in said.splitlines() if line and not line.startswith((" ", "Traceback"))]
    assert lines == words


@pytest.mark.parametrize("way", ["outcome", "map", "await"])
@regression("python/cpython#125886")
def test_an_interrupt_from_the_terminal_is_the_programs_alone(report, profile, tmp_path, way):
    with hosts.on_a_terminal("compute_until_interrupted", profile, tmp_path, way) as terminal:
        terminal.read_until(b"ready")
        assert len(alive_with(str(tmp_path))) >= 4
        began = time.monotonic()
        terminal.type(b"\x03")
        shown = terminal.read_to_the_end()
        assert time.monotonic() - began < PROMPT
    assert terminal.returncode == 0, shown
    assert watch.end_with(str(tmp_path)) == {}
    assert json.loads(shown.splitlines()[-1]) == {
        "interrupts": 1,
        "sessions of their own": 4,
        "started": 4,
        "endings": [list(CANCELLED)] * 8,
        "again": 1,
    }
    assert b"Traceback" not in shown
    assert b"KeyboardInterrupt" not in shown
    assert list(tmp_path.iterdir()) == []


async def by_its_holder(request):
    task = asyncio.create_task(request)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def twice(request):
    """The second one arrives while the first is cleaned up after."""
    task = asyncio.create_task(request)
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def at_once(request):
    """Twice before it has run on at all."""
    task = asyncio.create_task(request)
    await asyncio.sleep(0.1)
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_timeout(request):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await request


async def by_wait_for(request):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(request, 0.1)


async def by_a_sibling(request):
    async def fail():
        await asyncio.sleep(0.1)
        raise LookupError

    async def both():
        async with asyncio.TaskGroup() as group:
            group.create_task(request)
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as raised:
        await both()
    assert [type(error) for error in raised.value.exceptions] == [LookupError]


async def by_scope(request):
    """A scope of anyio cancels whatever waits inside it again and again."""
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_later(0.1, scope.cancel)
        await request
    assert scope.cancelled_caught


async def by_deadline_of_a_scope(request):
    with anyio.move_on_after(0.1) as scope:
        await request
    assert scope.cancelled_caught


@pytest.mark.parametrize("target", [stubborn.in_sleep, stubborn.deaf], ids=["hears", "deaf"])
@pytest.mark.parametrize(
    "cancel",
    [
        by_its_holder,
        twice,
        at_once,
        by_timeout,
        by_wait_for,
        by_a_sibling,
        by_scope,
        by_deadline_of_a_scope,
    ],
)
@regression("langchain-ai/langgraph#5682")
def test_a_request_that_is_cancelled_takes_its_child_along(case, cancel, target):
    heard = []

    async def request():
        try:
            await child
        except asyncio.CancelledError as error:
            heard.append(type(error).__name__)
            raise
        finally:
            await child.wait()  # the clean-up, which a second cancel cuts short

    async def main():
        began = time.monotonic()
        await cancel(request())
        outcome = await child.wait()
        assert time.monotonic() - began < PROMPT
        return outcome

    child = case.launch(target, limits=limits())
    watch.wait_for_event(child, "here")
    assert how(asyncio.run(main())) == CANCELLED
    assert how(case.settle(child)) == CANCELLED
    assert heard == ["CancelledError"]
