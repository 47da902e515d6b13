"""The loop's side of one child: feeds `transitions.step` with what happens, and carries out what it says.

What the child says is heard by `hearing.Hearing`. Everything here runs on the broker's thread, except
where it says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from sandbox_exec.engine import states
from sandbox_exec.engine.bounds import Bounds
from sandbox_exec.engine.clocks import Clocks
from sandbox_exec.engine.failures import explained
from sandbox_exec.engine.hearing import Hearing
from sandbox_exec.engine.outcome import ErrorInfo, ExitInfo, Outcome, Usage
from sandbox_exec.engine.output import Capture, Output, pipe
from sandbox_exec.engine.reaper import Exit, Process
from sandbox_exec.engine.states import Cause, Life, Phase, Timer
from sandbox_exec.engine.stdio import Stdio
from sandbox_exec.engine.templates import DIRECT, INIT
from sandbox_exec.engine.transitions import step
from sandbox_worker import protocol

if TYPE_CHECKING:
    from sandbox_exec.confinement.plan import Plan
    from sandbox_exec.engine.broker import Deadline
    from sandbox_exec.engine.child import Child
    from sandbox_exec.engine.ward import Ward
    from sandbox_exec.toolsets.tool import Tool

SECONDS: Final = {Timer.BOOT: 10.0, Timer.LEAVE: 1.0, Timer.UNREAPED: 30.0}  # GRACE is the limits' own
MOST_DRAINS: Final = 4_096  # turns of a frame at least: a socket holds hundreds, more is somebody else's
INIT_SECONDS: Final = 0.05  # init ends the tree once its worker is dead; then it is killed itself


class Warden:
    """Keeps one child from its launch to its end.

    Args:
        run_frame: the Run message, ready-made: its size and contents were checked in the caller's thread.
        stdin: what the child reads on descriptor 0, empty for end of file at once; or a command's Stdio.
    """

    __slots__ = (
        "_bounds", "_captures", "_child", "_clocks", "_deadline", "_drained", "_drains", "_exit",
        "_hearing", "_passed", "_plan", "_process", "_ran_at", "_run_frame", "_started_at", "_status",
        "_stdin", "_ward", "life",
    )  # fmt: skip

    def __init__(
        self,
        ward: Ward,
        child: Child,
        plan: Plan,
        run_frame: bytes,
        stdin: bytes | Stdio,
        *,
        is_command: bool,
        grants: Mapping[str, Tool],
    ) -> None:
        self._ward, self._child, self._plan = ward, child, plan
        self._run_frame, self._stdin = run_frame, stdin
        limits = plan.limits
        self.life = Life(
            cpu_limited=limits.cpu_seconds is not None, file_limited=limits.file_bytes is not None
        )
        self._hearing = Hearing(ward, child, limits, self, is_command=is_command, grants=grants)
        self._bounds = Bounds(ward, child.id, limits) if Bounds.needed(limits) else None
        self._captures: list[Capture] = []
        self._status: int | None = None  # init's pipe, until its process takes it
        self._process: Process | None = None
        self._deadline: Deadline | None = None
        self._clocks = Clocks(ward.broker, limits, self._bounds, self.feed)
        self._exit: Exit | None = None
        self._drained, self._drains = False, 0
        self._passed: list[int] = []  # signals that wait for the command
        self._started_at = self._ran_at = 0.0
        self._note("queued")

    def feed(self, event: states.Event) -> None:
        """One step of its life."""
        self.life, effects = step(self.life, event)
        self._hearing.permit(self.life.permitted)
        if self._child.alive:
            self._child._state = self.life.public  # noqa: SLF001 one object in two halves
        for effect in effects:
            self._carry_out(effect)
        if self._passed:
            self._pass_on()

    def cancel(self, event: states.CancelAsked | states.KillAsked, reason: str) -> None:
        """The caller's wish."""
        if not self.life.cancel_asked and self._child.alive:
            self._note("ending", {"reason": reason} if reason else {})
        self.feed(event)
        if self.life.phase is Phase.SPAWNING:
            self._ward.launchers.withdraw(self, "")

    def pass_signal(self, number: int) -> None:
        """A signal for the command, as soon as there is one."""
        self._passed.append(number)
        self._pass_on()

    def _pass_on(self) -> None:
        if self._process is None or not self.life.command or self.life.phase is Phase.ENDED:
            return
        for number in self._passed:
            self._process.pass_signal(number)
        self._passed.clear()

    def strike(self) -> None:
        """SIGKILL from any thread, for a kill that was posted before."""
        with self._ward.lock:  # its descriptors are closed under it
            if self._process is not None and self.life.ran:
                self._process.kill()

    def flush_steers(self) -> None:
        """There are steers to send."""
        self._hearing.flush_steers()

    def usage(self) -> Usage:
        """Live figures; from any thread."""
        process = self._process
        if process is None or not self._ran_at:
            return Usage()
        return Usage(time.monotonic() - self._ran_at, process.cpu_seconds(), process.rss_bytes())

    # templates.Order: a process for it.

    @property
    def shape(self) -> str:
        """See `templates.Order`."""
        return INIT if self._plan.may_fork else DIRECT

    def prepare(self) -> tuple[list[tuple[int, int, int]], list[int]]:
        """Makes the descriptors, and lays Boot ready; see `templates.Order`."""
        self._close_descriptors()
        limits, shape = self._plan.limits, self.shape
        with contextlib.ExitStack() as undo:
            undo.callback(self._captures.clear)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            undo.callback(ours.close)
            fds = [theirs.detach()]
            undo.callback(_close_all, fds)
            for _ in ("stdout", "stderr"):
                capture, end = pipe(self._ward.broker, limits.output_bytes or 0)
                undo.callback(capture.close)
                self._captures.append(capture)
                fds.append(end)
            if shape == INIT:
                self._status, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                fds.append(end)
            undo.pop_all()
        self._hearing.attach(ours, attest=shape == INIT)
        plan = {"result_bytes": limits.result_bytes, "result_items": limits.result_items}
        self._hearing.send(protocol.pack(protocol.Down.BOOT, protocol.VERSION, plan))
        return list(self._plan.rlimits), fds

    def spawned(self, pid: int, pidfd: int, *, contained: bool) -> None:
        """See `templates.Order`."""
        self._process, self._status = Process(pid, pidfd, self._status, contained=contained), None
        self._started_at = time.time()  # noqa: TID251 for people
        self._child.degraded = self._plan.degraded
        if self._plan.may_fork and not contained:
            self._child.degraded += ("pidns",)
        self._ward.pids.add(pid)
        self._hearing.open()
        for capture in self._captures:
            capture.open()
        self._clocks.cancel()  # it was looked after until here
        self._ward.broker.watch_end(pidfd, self._on_death)
        self._note("spawned", {"pid": pid})
        self.feed(states.Spawned())

    def failed(self, why: str) -> None:
        """See `templates.Order`."""
        self.feed(states.SpawnFailed(why))

    # hearing.Keeper.

    def confirm(self) -> None:
        """Is the one that says Ready the worker that was spawned? See `hearing.Keeper`."""
        assert self._process is not None
        try:
            known = self._process.identify(self._hearing.peer)
        except ProcessLookupError:  # dead since: its end follows
            return
        except OSError as error:
            self.feed(states.BootFailed(Cause.BOOT_FAILED, f"cannot hold the worker: {error}"))
            return
        if not known:
            why = "Ready came from another process than the one that was spawned"
            self.feed(states.BootFailed(Cause.NOT_CONFINED, why))
            return
        self._child.pid = self._process.worker
        self._note("ready")
        if self._bounds is None:
            self.feed(states.Ready())
        elif self.life.phase is Phase.BOOTING:
            self._bounds.join((self._process.pid, self._process.worker), self._bound)

    def _bound(self, wrong: str) -> None:
        """The limits of its tree are in force, or cannot be."""
        assert self._bounds is not None
        if self.life.phase is not Phase.BOOTING:
            return
        if wrong:
            self.feed(states.BootFailed(Cause.BOOT_FAILED, wrong))
            return
        self._child.degraded += self._bounds.degraded(contained="pidns" not in self._child.degraded)
        self.feed(states.Ready())

    def settle(self) -> None:
        """Concludes, once the process is gone and all it said is known; see `hearing.Keeper`."""
        if self._exit is None or not self._drained or self._hearing.busy:
            return
        partial_text, self._hearing.partial = self._hearing.partial, None
        verdict = self.life.verdict
        succeeded = verdict is not None and verdict.state is states.SubagentState.SUCCEEDED
        if partial_text is not None and not succeeded:
            self._hearing.decode_off_loop(partial_text, self._keep_partial)
            return
        self.feed(states.Gone(self._exit.code, self._exit.signal))

    def _keep_partial(self, value: object) -> None:
        self._hearing.value = value

    # Its end.

    def _on_death(self) -> None:
        assert self._process is not None
        self._exit = self._process.collect()
        broker = self._ward.broker
        if self._exit is None:  # a spurious wake-up: look again
            broker.call_at(time.monotonic() + 0.001, self._on_death)
            return
        broker.forget(self._process.pidfd)
        if self._exit.signal == signal.SIGKILL and self._bounds is not None and self._bounds.out_of_memory():
            self.feed(states.LimitHit(Cause.MEMORY))
        self._read_last_words()

    def _read_last_words(self) -> None:
        self._drains += 1
        if self._drains < MOST_DRAINS and not self._hearing.drain():
            self._ward.broker.post(self._read_last_words)  # the others have their turn first
            return
        self._drained = True
        self.settle()

    # What `states` wants done.

    def _carry_out(self, effect: states.Effect) -> None:
        match effect:
            case states.Spawn():
                self._clocks.after(SECONDS[Timer.BOOT], self._look_after_spawn)
                self._ward.launchers.request(self)
            case states.Run():
                self._run()
            case states.AskCancel():
                self._hearing.send(protocol.pack(protocol.Down.CANCEL))
                self._signal(signal.SIGURG)
            case states.Terminate():
                self._note("ending", {"signal": "SIGTERM"})
                self._signal(signal.SIGTERM)
            case states.Kill(cause):
                self._note("ending", {"signal": "SIGKILL", "cause": cause.value})
                if self._process is not None:
                    self._process.kill()
                    self._clocks.after(INIT_SECONDS, self._process.kill_tree)
            case states.Arm(timer):
                self._arm(timer)
            case states.CloseSteering():
                self._child._close_steering()  # noqa: SLF001
            case states.Publish(ending):
                self._publish(ending)
            case states.Release():
                self._release()
            case _:
                assert_never(effect)

    def _look_after_spawn(self) -> None:
        if self.life.phase is Phase.SPAWNING:
            self._ward.launchers.overdue(self, SECONDS[Timer.BOOT])
            self._clocks.after(1.0, self._look_after_spawn)

    def _run(self) -> None:
        self._hearing.send(self._run_frame)
        given, self._run_frame, self._stdin = self._stdin, b"", b""
        if given:
            self._hearing.send_input(given)
        self._ran_at = time.monotonic()
        if self._deadline is not None:  # of the boot
            self._deadline.cancel()
        self._note("running")
        assert self._process is not None
        self._clocks.start(self._process)
        self._hearing.flush_steers()

    def _arm(self, timer: Timer) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        at = time.monotonic() + SECONDS.get(timer, self._plan.limits.grace_seconds or 0.0)
        self._deadline = self._ward.broker.call_at(at, partial(self.feed, states.TimerFired(timer)))

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    def _note(self, kind: str, data: dict[str, object] | None = None) -> None:
        self._child._log.add("executor", kind, data or {})  # noqa: SLF001

    def _publish(self, ending: states.Ending) -> None:
        self._clocks.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        now = time.time()  # noqa: TID251 for people
        exit_, hearing, limits = self._exit or Exit(), self._hearing, self._plan.limits
        stdout, stderr = [capture.finish() for capture in self._captures] or (Output(), Output())
        succeeded = ending.classification is None
        self._ward.ended(ending.state)
        self._note("ended", {"state": ending.state.value, "cause": ending.cause})
        self._child._publish(  # noqa: SLF001
            Outcome(
                child_id=self._child.id,
                state=ending.state,
                value=hearing.value if succeeded else None,
                error=None if succeeded else explained(ending, hearing.failure, exit_, limits, stderr),
                exit=ExitInfo(exit_.code, exit_.signal, ending.cause),
                partial=None if succeeded else hearing.value,
                stdout=stdout,
                stderr=stderr,
                usage=Usage(
                    time.monotonic() - self._ran_at if self._ran_at else 0.0,
                    # What init did not live to wait for is in nobody's rusage.
                    max(exit_.cpu_seconds, self._clocks.cpu_seconds),
                    exit_.peak_rss_bytes,
                ),
                missed_steer=self._child._missed(),  # noqa: SLF001
                denials=tuple(hearing.denials),
                degraded=self._child.degraded,
                started_at=self._started_at or now,
                completed_at=now,
            )
        )

    def _release(self) -> None:
        self._close_descriptors()
        if self._process is not None:
            self._ward.broker.forget(self._process.pidfd)
            self._ward.pids.discard(self._process.pid)
            with self._ward.lock:
                self._process.close()
        if self._bounds is not None:
            self._bounds.close()
        if isinstance(self._stdin, Stdio):  # it never ran
            self._stdin.close()
        self._ward.released(self._child)

    def _close_descriptors(self) -> None:
        self._hearing.close()
        for capture in self._captures:
            capture.close()
        self._captures = []
        if self._status is not None:
            os.close(self._status)
            self._status = None

    def collapse(self, why: str) -> None:
        """The engine failed: ends the tree and says so, by the shortest way."""
        if self._process is not None:
            self._process.kill_tree()
        if self._child.alive:
            error = ErrorInfo("HOST_LOST", message=why)
            state, cause = states.SubagentState.INTERRUPTED, ExitInfo(cause="host")
            missed = self._child._missed()  # noqa: SLF001
            outcome = Outcome(self._child.id, state, error=error, exit=cause, missed_steer=missed)
            self._child._publish(outcome)  # noqa: SLF001

    def abandon(self) -> None:
        """Closes the host's ends in a forked copy of the host, without a word to the loop they share."""
        self._hearing.abandon()
        for capture in self._captures:
            capture.abandon()
        if self._process is not None:
            self._process.close()


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
