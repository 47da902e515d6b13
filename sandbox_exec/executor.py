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
from sandbox_exec.engine import payload
from sandbox_exec.engine.child import Child
from sandbox_exec.engine.payload import Command
from sandbox_exec.engine.ward import Ward
from sandbox_exec.errors import ConfigError, ExecutorClosed, LaunchError
from sandbox_worker import protocol

if TYPE_CHECKING:
    from types import TracebackType

DESCRIPTORS_A_CHILD: Final = 6  # channel, pidfds of init and worker, stdout, stderr, init's status pipe
OWN_DESCRIPTORS: Final = 64
MAX_STRING: Final = 128 * 1024 - 1  # MAX_ARG_STRLEN of execve


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

    def launch(
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
            args, kwargs: of the callable.
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
        is_command = isinstance(target, Command)
        identity = f"sa-{next(self._numbers)}-{secrets.token_hex(4)}"
        assignment: dict[str, object] = {
            "id": identity,
            "goal": "",
            "context": "",
            "toolsets": (),
            "workspace": None,
            "env": _environment(chosen, env),
            "cwd": _directory(cwd),
            "stdin": bool(stdin),
            "path": payload.site_directories(),
        }
        if isinstance(target, Command):
            if args or kwargs:
                msg = "a Command has its arguments in argv: args and kwargs are for callables"
                raise ConfigError(msg)
            assignment["argv"] = _argv(target)
        elif callable(target):
            assignment["target"], places = payload.packed_target(target)
            assignment["path"] = [*payload.site_directories(), *places]
            assignment["args"] = payload.packed_args(args, dict(kwargs or {}))
        else:
            msg = f"a target is a callable or a Command, not {target!r}"
            raise ConfigError(msg)
        frame = protocol.pack(protocol.Down.RUN, assignment)
        child_name = name if name is not None else _name_of(target)
        ward = self._opened()
        child = Child(ward, identity, child_name)
        ward.launch(child, plan, frame, _as_bytes(stdin), is_command=is_command)
        return child

    def _opened(self) -> Ward:
        with self._lock:
            if self._closed:
                msg = "the executor was shut down: make a new one"
                raise ExecutorClosed(msg)
            if self._ward is None:
                try:
                    self._ward = Ward(self._max_children, self._python)
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
            self._closed = True
            ward, self._ward = (self._ward, None) if wait else (self._ward, self._ward)
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


def _name_of(target: object) -> str:
    if isinstance(target, Command):
        return str(target.argv[0])
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _as_bytes(stdin: bytes | str | None) -> bytes:
    if stdin is None:
        return b""
    if isinstance(stdin, str):
        return stdin.encode("utf-8", "surrogateescape")
    if isinstance(stdin, bytes):
        return stdin
    msg = f"stdin must be bytes, str or None, not {type(stdin).__name__}"
    raise ConfigError(msg)


def _argv(command: Command) -> list[str]:
    if isinstance(command.argv, str) or not command.argv:
        msg = f"argv must be a list with at least the program, not {command.argv!r}"
        raise ConfigError(msg)
    argv = [os.fspath(part) for part in command.argv]
    for part in argv:
        _check_text("argv", part)
    return argv


def _check_text(what: str, text: object) -> None:
    if type(text) is not str or "\0" in text:
        msg = f"{what} must be text without NUL characters, not {text!r:.200}"
        raise ConfigError(msg)
    if len(os.fsencode(text)) > MAX_STRING:
        msg = f"{what} has a string of {len(text):,} characters: Linux takes {MAX_STRING:,} bytes. Use stdin."
        raise ConfigError(msg)


def _environment(profile: Profile, added: Mapping[str, str] | None) -> dict[str, str]:
    environment = {name: os.environ[name] for name in profile.environment if name in os.environ}
    for name, value in (added or {}).items():
        _check_text("env", name)
        _check_text(f"env {name!r}", value)
        if not name or "=" in name:
            msg = f"env: {name!r} is no name for a variable"
            raise ConfigError(msg)
        environment[name] = value
    return environment


def _directory(cwd: str | os.PathLike[str] | None) -> str | None:
    if cwd is None:
        try:
            return os.getcwd()
        except FileNotFoundError:  # deleted under us: the child stands in /
            return None
    path = os.fspath(cwd)
    _check_text("cwd", path)
    if not os.path.isdir(path):
        msg = f"cwd {path!r} is no directory"
        raise ConfigError(msg)
    return os.path.abspath(path)


def _make_room(max_children: int) -> None:
    """Raises RLIMIT_NOFILE as far as needed.

    Raises:
        ConfigError: the hard limit is too low.
    """
    needed = max_children * DESCRIPTORS_A_CHILD + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in {resource.RLIM_INFINITY} and needed > hard:
        fits = max(0, (hard - OWN_DESCRIPTORS) // DESCRIPTORS_A_CHILD)
        msg = f"max_children={max_children} needs {needed} descriptors, the hard limit is {hard}: at most {fits} fit"
        raise ConfigError(msg)
    if soft not in {resource.RLIM_INFINITY} and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_executors: weakref.WeakSet[SandboxExecutor] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for executor in list(_executors):
        executor.shutdown()
