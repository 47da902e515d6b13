"""The front door: jobs in, truthful outcomes out."""

from __future__ import annotations

import atexit
import itertools
import os
import resource
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from sandbox_exec.confinement.plan import compile_plan
from sandbox_exec.confinement.profile import Limits, Profile, load_profile
from sandbox_exec.engine import assignment
from sandbox_exec.engine.child import Child
from sandbox_exec.engine.payload import Command
from sandbox_exec.engine.ward import Ward, close_all
from sandbox_exec.errors import ConfigError, ExecutorClosed, LaunchError

if TYPE_CHECKING:
    from types import TracebackType

DESCRIPTORS_A_CHILD: Final = 6  # channel, pidfds of init and worker, stdout, stderr, init's status pipe
OWN_DESCRIPTORS: Final = 64


class SandboxExecutor:
    """Runs each job in a process of its own, and says how it ended.

    Args:
        profile: name of the profile that children run under. Until the wall exists only profiles that
            ask for no kernel layers can be had: "none".
        max_children: how many live at once; further ones wait, first come, first served.
        start: "exec" gives every child a fresh interpreter; the only way there is yet.
        spares: children made ahead; none can be yet.
        python: the interpreter of the children; the host's own by default.

    Use it as a context manager: nothing that it started survives it. The threads and the launcher come
    up with the first launch.
    """

    def __init__(
        self,
        profile: str = "none",
        max_children: int = 32,
        *,
        start: str | None = None,
        spares: int = 0,
        python: str | None = None,
    ) -> None:
        self._profile: Profile = load_profile(profile)
        if start not in {None, "exec"} or spares != 0:
            msg = f"start={start!r} with spares={spares!r} is not to be had yet: use start='exec', spares=0"
            raise ConfigError(msg)
        if type(max_children) is not int or max_children < 1:
            msg = f"max_children must be a positive whole number, not {max_children!r}"
            raise ConfigError(msg)
        _make_room(max_children)
        self._max_children, self._python = max_children, python
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._ward: Ward | None = None
        self._closed = False
        _executors.add(self)

    def launch(  # noqa: PLR0913 the public signature
        self,
        target: Callable[..., object] | Command,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        profile: str | None = None,
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
            profile: another profile than the executor's.
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
            LaunchError: the executor's own threads cannot be started.
        """
        chosen = self._profile if profile is None else load_profile(profile)
        plan = compile_plan(chosen, limits)
        identity = f"sa-{next(self._numbers)}-{secrets.token_hex(4)}"
        given = assignment.stdin_bytes(stdin)
        frame = assignment.packed(
            identity, target, args, kwargs or {}, chosen.environment, env or {}, cwd, has_stdin=bool(given)
        )
        ward = self._opened()
        child = Child(ward, identity, assignment.name_of(target) if name is None else name)
        ward.launch(child, plan, frame, given, is_command=isinstance(target, Command))
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
            return {"live": 0, "queued": 0, "started": 0, "ended": {}}
        return self._ward.statistics()

    def shutdown(self, *, wait: bool = True) -> None:
        """Ends every child, in reverse order of start, and the executor; idempotent.

        Args:
            wait: False returns while the children still end; nothing more is launched in any case.
        """
        with self._lock:
            self._closed, ward = True, self._ward
        if ward is None:
            return
        if wait:
            ward.close()
            return
        ward.shut("the executor was shut down: make a new one")
        ward.end_children()
        threading.Thread(target=self.shutdown, name="sandbox-exec shutdown", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _make_room(max_children: int) -> None:
    """Raises RLIMIT_NOFILE as far as needed.

    Raises:
        ConfigError: the hard limit is too low.
    """
    needed = max_children * DESCRIPTORS_A_CHILD + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        fits = max(0, (hard - OWN_DESCRIPTORS) // DESCRIPTORS_A_CHILD)
        msg = f"max_children={max_children} needs {needed} descriptors of {hard} (ulimit -Hn): {fits} fit"
        raise ConfigError(msg)
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
