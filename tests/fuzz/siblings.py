"""Children that must not notice what hostile ones do, and what the host weighs meanwhile."""

import ctypes
import gc
import os
import threading
import time
from array import array
from collections.abc import Callable

from children import sibling
from sandbox_exec import SandboxExecutor
from sandbox_exec.toolsets.tool import Tool

PING_SECONDS = 0.002
PONG_SECONDS = 10.0  # a sibling that does not answer for so long is disturbed, on any machine
END_SECONDS = 30.0


class Siblings:
    """One child that answers, one that sleeps."""

    def __init__(
        self, executor: SandboxExecutor, fail: Callable[[str], None], pongs: array | None = None
    ) -> None:
        self._fail = fail
        self.pongs = array("d") if pongs is None else pongs
        self._sleeper, self._answerer = executor.launch(sibling.sleep), executor.launch(sibling.answer)
        self._answerer._warden._hearing._grants = {"echo": Tool(lambda **args: args, 60.0)}
        self._stop = threading.Event()
        self._at = time.monotonic()
        self._asked = 0
        self._thread = threading.Thread(target=self._play, name="ping")
        self._thread.start()
        while not self.pongs and self._thread.is_alive():
            time.sleep(0.01)

    def _play(self) -> None:
        events = (event for event in self._answerer.events() if event.source == "child")
        number = 0
        while not self._stop.wait(PING_SECONDS):
            text = f"ping {number}{'' if number % 8 else '?'}"
            number += 1
            started = self._at = time.monotonic()
            if not self._answerer.steer(text):
                self._fail("a sibling takes no steer")
                return
            event = next(events, None)
            if event is None or event.data != {"text": text} or event.dropped:
                self._fail(f"a sibling answered {event} to {text!r}")
                return
            if len(self.pongs) < 200_000:
                self.pongs.append(time.monotonic() - started)
            self._asked = number

    def look(self) -> None:
        """Between two rounds: are they well?"""
        if self._thread.is_alive() and time.monotonic() - self._at > PONG_SECONDS:
            self._fail(f"a sibling has not answered for {PONG_SECONDS:g} s")
            self._at = time.monotonic() + 3600
        if self._sleeper.state != "RUNNING":
            self._fail(f"the sleeping sibling is {self._sleeper.state}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PONG_SECONDS)
        self._answerer.steer("stop")
        self._sleeper.cancel("the end")
        for child, expected in (
            (self._answerer, ("SUCCEEDED", self._asked)),
            (self._sleeper, ("CANCELLED", None)),
        ):
            try:
                outcome = child.outcome(END_SECONDS)
            except TimeoutError as error:
                self._fail(f"sibling {child.name}: {error}")
                child.kill()
            else:
                if (outcome.state, outcome.value) != expected:
                    self._fail(
                        f"sibling {child.name} ended as {outcome.state} {outcome.value!r}, not {expected}"
                    )


def at_rest() -> int:
    """Resident memory without what the allocator only keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


def resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
