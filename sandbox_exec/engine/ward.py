"""All children of one executor: admission in order of arrival, slots, and the end of all.

Started in order (broker, spawner, launcher, children) and ended in reverse. After a fork of the host
the copy's ward is only closed descriptors: it refuses every launch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandbox_exec.engine import states
from sandbox_exec.engine.asks import Asks
from sandbox_exec.engine.broker import Broker
from sandbox_exec.engine.pool import Pool
from sandbox_exec.engine.spawner import Spawner
from sandbox_exec.engine.stdio import Stdio
from sandbox_exec.engine.templates import Launchers
from sandbox_exec.engine.warden import Warden
from sandbox_exec.errors import ExecutorClosed, LaunchError

if TYPE_CHECKING:
    from sandbox_exec.confinement.plan import Plan
    from sandbox_exec.engine.child import Child
    from sandbox_exec.toolsets.tool import Tool

DECODERS = 2
CALLBACK_THREADS = 4  # of futures; one that waits for another job must not keep all the others waiting


class Ward:
    """The engine behind one executor.

    Attributes:
        lock: guards what loop and callers share: it is never held while anything waits. Reentrant, for a
            signal handler of the program may call us in the midst of a call of ours.
        pids: of the processes that the host is the parent of.
        abandoned: this is the ward of a forked copy of the host.
    """

    def __init__(self, max_children: int, python: str | None = None) -> None:
        self.lock = threading.RLock()
        self.broker = Broker(self._collapse)
        self.pool = Pool("decoder", DECODERS)
        self.asks = Asks(self.broker, time.monotonic)
        self.callbacks = Pool("callbacks", CALLBACK_THREADS)
        self.pids: set[int] = set()
        try:
            self._spawner = Spawner(python)
        except BaseException:  # no more threads: the loop's must not stay behind
            self.broker.close()
            raise
        self.launchers = Launchers(self.broker, self._spawner, lambda: self.pids)
        self._max = max_children
        self._wardens: dict[str, tuple[Child, Warden]] = {}  # live and queued, oldest first
        self._queue: deque[tuple[Child, Warden]] = deque()
        self._running: set[str] = set()
        self._submitted: set[str] = set()
        self._closed: str | None = None
        self.abandoned = self._over = self._retired = False
        self._closing = threading.RLock()  # a signal handler may shut down in the midst of it
        self._started = 0
        self._ended: dict[str, int] = {}
        _wards.add(self)

    def launch(
        self,
        child: Child,
        plan: Plan,
        run_frame: bytes,
        stdin: bytes | Stdio = b"",
        *,
        is_command: bool = False,
        grants: Mapping[str, Tool] | None = None,
        submitted: bool = False,
        queue: bool = True,
    ) -> None:
        """Takes a child in. From any thread.

        Args:
            child: its public half.
            plan: what it is held to.
            run_frame: see `Warden`.
            stdin: see `Warden`.
            is_command: the target is a program.
            grants: the host tools that the child may ask for, by name.
            submitted: it is finished before the executor ends, instead of being ended.
            queue: it may wait for a slot.

        Raises:
            ExecutorClosed: no more children are taken.
            LaunchError: there is no slot, and it may not wait.
        """
        warden = Warden(self, child, plan, run_frame, stdin, is_command=is_command, grants=grants or {})
        with self.lock:
            if self._closed is not None:
                raise ExecutorClosed(self._closed)
            # Whoever is here holds a slot or was launched earlier: with fewer, this one will not wait.
            if not queue and len(self._wardens) >= self._max:
                msg = (
                    f"the executor is full ({self._max} children live or queued), and a child's own launch "
                    "never waits: raise max_children, or launch fewer at once"
                )
                raise LaunchError(msg)
            child._warden = warden  # noqa: SLF001 one object in two halves
            self._wardens[child.id] = child, warden
            if submitted:
                self._submitted.add(child.id)
            self._started += 1
            self.broker.post(lambda: self._admit(child, warden))

    def _admit(self, child: Child, warden: Warden) -> None:
        if not child.alive:
            return
        if len(self._running) >= self._max:
            self._queue.append((child, warden))
            return
        self._running.add(child.id)
        warden.feed(states.Admitted())

    def released(self, child: Child) -> None:
        """Nothing of this child is left; the next in the queue may start. On the loop."""
        with self.lock:
            self._wardens.pop(child.id, None)
            self._submitted.discard(child.id)
        self._running.discard(child.id)
        self._close_if_retired()
        while self._queue and len(self._running) < self._max:
            self._admit(*self._queue.popleft())

    def ended(self, state: states.SubagentState) -> None:
        """A child's end is about to be published."""
        with self.lock:
            self._ended[state.value] = self._ended.get(state.value, 0) + 1

    def children(self) -> list[Child]:
        """The live ones, oldest first."""
        with self.lock:
            return [child for child, _ in self._wardens.values() if child.alive]

    def statistics(self) -> dict[str, object]:
        """Counts: live, queued, started, ended by state."""
        with self.lock:
            queued = sum(child.state is states.SubagentState.PENDING for child, _ in self._wardens.values())
            live = sum(child.alive for child, _ in self._wardens.values()) - queued
            ended = dict(self._ended)
            return {"live": live, "queued": queued, "started": self._started, "ended": ended, "spares": 0}

    def shut(self, why: str) -> None:
        """Takes no more children; idempotent."""
        with self.lock:
            self._closed = self._closed or why

    def finish_submitted(self, *, cancel_queued: bool = False) -> None:
        """Waits until the submitted jobs are over; those that have not begun may be cancelled instead."""
        with self.lock:
            children = [child for child, _ in self._wardens.values() if child.id in self._submitted]
        for child in children if cancel_queued else ():
            if child.state is states.SubagentState.PENDING:
                child.cancel("the executor is shut down")
        for child in children:
            child.outcome()

    def end_children(self) -> None:
        """Asks every child to end, in reverse order of start."""
        with self.lock:
            children = [child for child, _ in self._wardens.values()]
        for child in reversed(children):
            child.cancel("the executor is shut down")

    def close(self) -> None:
        """Ends the engine: children first, then what they were made by. Not from the loop.

        Idempotent: of several threads one does it, and all return when it is done.
        """
        if self.broker.is_current:  # the loop cannot wait for itself
            self.close_aside()
            return
        with self._closing:
            if not self.abandoned and not self._over:
                self._close()
                self._over = True

    def close_aside(self, *, finish: bool = False, cancel_queued: bool = False) -> None:
        """Closes from a thread of its own.

        Args:
            finish: submitted jobs are finished first.
            cancel_queued: see `finish_submitted`.
        """

        def close() -> None:
            if finish:
                self.finish_submitted(cancel_queued=cancel_queued)
            self.close()

        # RuntimeError: the interpreter is ending, and `close_all` with it.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=close, name="sandbox-exec shutdown", daemon=True).start()

    def _close(self) -> None:
        self.shut("the executor was shut down: make a new one")
        self.end_children()
        for child in self.children():
            child.outcome()
        done = threading.Event()

        def end_launcher() -> None:
            self.launchers.close()
            done.set()

        self.broker.post(end_launcher)
        done.wait()
        self._spawner.close()
        self.pool.close()
        self.asks.close()
        self.callbacks.close()
        self.broker.close()
        _wards.discard(self)

    def retire(self) -> None:
        """The executor is held by nobody any more: ends the engine once its last child has ended."""

        def on_loop() -> None:
            self._retired = True
            self._close_if_retired()

        self.broker.post(on_loop)

    def _close_if_retired(self) -> None:
        if self._retired and not self._wardens:
            self.close()

    def _collapse(self, error: Exception) -> None:
        """A bug of ours on the loop: every child is ended and told so, rather than left to hang."""
        why = f"the engine failed: {type(error).__name__}: {error}"
        self.shut(f"{why}. Make a new executor, and report this.")
        sys.excepthook(type(error), error, error.__traceback__)
        with self.lock:
            wardens = [warden for _, warden in self._wardens.values()]
            self._wardens.clear()
        for warden in wardens:
            warden.collapse(why)

    def abandon(self) -> None:
        """In a forked copy of the host: closes the descriptors, and refuses from now on."""
        self.abandoned = True
        # The copy may have been made while another thread held them.
        self.lock, self._closing = threading.RLock(), threading.RLock()
        self._closed = "this executor was made before fork: make a new one in this process"
        self.launchers.abandon()
        for child, warden in self._wardens.values():
            warden.abandon()
            child._abandon()  # noqa: SLF001
        self._wardens.clear()
        self.broker.abandon()


# The copy of a forked host holds every channel: a child's death would be seen late, or never.
_wards: weakref.WeakSet[Ward] = weakref.WeakSet()


def close_all() -> None:
    """Ends every engine, also of executors that nobody holds any more; what was submitted is finished."""
    for ward in list(_wards):
        ward.shut("the interpreter is ending")
        ward.finish_submitted()
        ward.close()


def _after_fork() -> None:
    for ward in list(_wards):
        ward.abandon()
    _wards.clear()


os.register_at_fork(after_in_child=_after_fork)
