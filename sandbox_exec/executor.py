"""The front door: jobs in, truthful outcomes out."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from sandbox_exec.confinement.plan import compile_plan
from sandbox_exec.confinement.profile import Limits, Profile, admitted
from sandbox_exec.engine import asks, assignment
from sandbox_exec.engine.capacity import make_room
from sandbox_exec.engine.child import Child
from sandbox_exec.engine.future import ChildFuture
from sandbox_exec.engine.payload import Command, Reach
from sandbox_exec.engine.spawner import has_our_version
from sandbox_exec.engine.stdio import Stdio
from sandbox_exec.engine.ward import Ward, close_all
from sandbox_exec.errors import ConfigError, ExecutorClosed, LaunchError
from sandbox_exec.toolsets.registry import Allowance, ToolsetRegistry

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


class SandboxExecutor(Executor):
    """Runs each job in a process of its own, and says how it ended.

    A `concurrent.futures.Executor`, whose jobs do not share a process; `launch` is the fuller form.

    Args:
        profile: the profile that children run under: a name, a path or a `Profile`. Until the wall exists
            only those that require no kernel layers can be had, such as "none".
        max_children: how many live at once; further ones wait, first come, first served.
        toolsets: what its children hold unless their launch names less, and at most. By default they hold
            nothing unless their launch names it, and a launch may name every toolset of the registry.
        start: "exec" gives every child a fresh interpreter; the only way there is yet.
        spares: children made ahead; none can be yet.
        registry: where toolsets are looked up; one with the built-in ones alone by default.
        python: the interpreter of the children; the host's own by default. To one of another version targets
            go by name only, and it searches none of the host's site-packages.
        imports: top-level packages that the children can import, beside the standard library, the host's
            site-packages and the target's own package: the directories that hold them are added to their
            sys.path. With () not even the target's own is, and it is sent by value.

    Use it as a context manager: nothing that it started survives it. What was submitted is finished first;
    leaving by an exception ends everything at once. The threads and the launcher come up with the first
    launch.
    """

    def __init__(
        self,
        profile: str | os.PathLike[str] | Profile = "none",
        max_children: int = 32,
        toolsets: Sequence[str] | None = None,
        *,
        start: str | None = None,
        spares: int = 0,
        registry: ToolsetRegistry | None = None,
        python: str | None = None,
        imports: Sequence[str] | None = None,
    ) -> None:
        self._profile: Profile = admitted(profile)
        if start not in {None, "exec"} or spares != 0:
            msg = f"start={start!r} with spares={spares!r} is not to be had yet: use start='exec', spares=0"
            raise ConfigError(msg)
        if type(max_children) is not int or max_children < 1:
            msg = f"max_children must be a positive whole number, not {max_children!r}"
            raise ConfigError(msg)
        if isinstance(imports, str):
            msg = f"imports must be a list of package names, not {imports!r}: write imports=[{imports!r}]"
            raise ConfigError(msg)
        self._reach = Reach(None if imports is None else tuple(imports), has_our_version(python))
        self._reach.directories(None)  # the names are looked up once here, to be refused early
        self._allowance = Allowance(registry, toolsets)
        make_room(max_children)
        self._max_children, self._python = max_children, python
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._ward: Ward | None = None
        self._closed = False
        _executors.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> ChildFuture[T]:
        """Runs ``fn(*args, **kwargs)`` in a child of its own.

        Returns:
            Its future, with the child in ``future.child``. ``future.cancel()`` also ends a running job.
            ``result()`` and ``exception()`` give what `Outcome.unwrap` returns or raises; of a cancelled
            child, as with every executor, `concurrent.futures.CancelledError`.

        Raises:
            ConfigError, ExecutorClosed, LaunchError: see `launch`.
        """
        child = self._started(Request(fn, args, kwargs), submitted=True)
        assert self._ward is not None
        future: ChildFuture[T] = ChildFuture(child, self._ward.callbacks.submit)
        child._call_at_end(future.end)  # noqa: SLF001 one object in two halves
        return future

    def launch(  # noqa: PLR0913 the public signature
        self,
        target: Callable[..., object] | Command,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        profile: str | os.PathLike[str] | Profile | None = None,
        toolsets: Sequence[str] | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: bytes | str | None = None,
        name: str | None = None,
    ) -> Child:
        """Starts one child.

        Args:
            target: a callable, sent by reference where the child can import it and by value elsewhere, or
                a `Command`.
            args: positional arguments of the callable.
            kwargs: its keyword arguments.
            profile: another profile than the executor's: a name, a path or a `Profile`.
            toolsets: what the child holds: no more than the executor's own, which is also the default.
            limits: tighter ones than the profile's.
            env: variables added to the profile's allow-list.
            cwd: the child's directory; the host's own by default.
            stdin: what the child reads; end of file at once by default.
            name: for people; the target's own name by default.

        Returns:
            The child, at once. Its end is in `Child.outcome`.

        Raises:
            ConfigError: the request is wrong; no process exists.
            ExecutorClosed: the executor was shut down, or made before a fork.
            LaunchError: the executor's own threads cannot be started; or it is full, and the caller is a host
                tool that a live child asked for: such a launch never waits.
        """
        return self._started(
            Request(target, args, kwargs or {}, profile, toolsets, limits, env or {}, cwd, stdin, name)
        )

    def _started(self, request: Request, *, submitted: bool = False) -> Child:
        chosen = self._profile if request.profile is None else admitted(request.profile)
        grant = self._allowance.grant(request.toolsets)
        plan = compile_plan(chosen, request.limits, grant.built_in)
        identity = f"sa-{next(self._numbers)}-{secrets.token_hex(4)}"
        given = request.stdio or assignment.stdin_bytes(request.stdin)
        target = request.target
        frame = assignment.packed(
            identity,
            target,
            request.args,
            request.kwargs,
            chosen.environment,
            request.env,
            request.cwd,
            has_stdin=request.stdio is None and bool(given),
            stdio=request.stdio,
            reach=self._reach,
            toolsets=grant.toolsets,
        )
        ward = self._opened()
        name = assignment.name_of(target) if request.name is None else request.name
        child = Child(ward, identity, name)
        is_command = isinstance(target, Command)
        ward.launch(
            child,
            plan,
            frame,
            given,
            is_command=is_command,
            grants=grant.tools,
            submitted=submitted,
            queue=asks.asking_child() is None,
        )
        return child

    def _opened(self) -> Ward:
        with self._lock:
            if self._closed:
                msg = "the executor was shut down: make a new one"
                raise ExecutorClosed(msg)
            if self._ward is None:
                try:
                    self._ward = Ward(self._max_children, self._python)
                    weakref.finalize(self, self._ward.retire).atexit = False
                except (OSError, RuntimeError) as error:  # no descriptors; no threads at interpreter shutdown
                    msg = f"cannot start the executor's threads: {error}"
                    raise LaunchError(msg) from error
            return self._ward

    def children(self) -> list[Child]:
        """The live children, oldest first."""
        return self._ward.children() if self._ward is not None else []

    def statistics(self) -> dict[str, object]:
        """Counts: live, queued, started, ended (by state)."""
        if self._ward is None:
            return {"live": 0, "queued": 0, "started": 0, "ended": {}, "spares": 0}
        return self._ward.statistics()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the executor; idempotent. Nothing more is taken from now on.

        Submitted jobs are finished first; then launched children, which belong to their holder, are ended
        in reverse order of start.

        Args:
            wait: False returns at once, while all this happens.
            cancel_futures: cancels the submitted jobs that have not begun.
        """
        ward = self._shut()
        if ward is None:
            return
        if wait and not ward.broker.is_current:  # there a collector may run a program's __del__
            ward.finish_submitted(cancel_queued=cancel_futures)
            ward.close()
        else:
            ward.close_aside(finish=True, cancel_queued=cancel_futures)

    def _shut(self) -> Ward | None:
        with self._lock:
            self._closed = True
        if self._ward is not None:
            self._ward.shut("the executor was shut down: make a new one")
        return self._ward

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ward = self._shut()
        if error is not None and ward is not None:
            ward.close()
        try:
            self.shutdown()
        except BaseException:  # Ctrl-C while the submitted jobs are finished
            if ward is not None:
                ward.close()
            raise


@dataclass(frozen=True, slots=True)
class Request:
    """What `SandboxExecutor.launch` is given; `stdio` is the command line's own."""

    target: object
    args: Sequence[object]
    kwargs: Mapping[str, object]
    profile: str | os.PathLike[str] | Profile | None = None
    toolsets: Sequence[str] | None = None
    limits: Limits | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | os.PathLike[str] | None = None
    stdin: bytes | str | None = None
    name: str | None = None
    stdio: Stdio | None = None


_executors: weakref.WeakSet[SandboxExecutor] = weakref.WeakSet()


def _after_fork() -> None:
    for executor in list(_executors):
        executor._lock = threading.Lock()  # noqa: SLF001 a launch may have held it


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    for executor in list(_executors):
        executor.shutdown()
    close_all()
