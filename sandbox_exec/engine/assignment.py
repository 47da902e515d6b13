"""What one launch hands to its child, checked in the caller's thread: no process exists yet.

Everything of the user's travels in the Run message, never in argv or environment of a start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from sandbox_exec.engine import payload
from sandbox_exec.engine.payload import Command
from sandbox_exec.engine.stdio import Stdio
from sandbox_exec.errors import ConfigError
from sandbox_worker import protocol

MAX_STRING: Final = 128 * 1024 - 1  # MAX_ARG_STRLEN of execve


def packed(  # noqa: PLR0913 what one launch is given
    identity: str,
    target: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    passed: Sequence[str],
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    *,
    has_stdin: bool,
    stdio: Stdio | None = None,
    reach: payload.Reach,
    toolsets: Sequence[str] = (),
) -> bytes:
    """The Run message.

    Args:
        identity: the child's id.
        target: what to run.
        args: of a callable.
        kwargs: of a callable.
        passed: names of the host's variables that the profile passes on.
        env: further variables.
        cwd: the child's directory; the host's own by default.
        has_stdin: a descriptor for it follows the message.
        stdio: of a command: these three follow it.
        reach: which modules the child can import.
        toolsets: names of those that it holds, to be told; what it may ask for is the host's to know.

    Raises:
        ConfigError: a part of it cannot be had.
    """
    parts: dict[str, object] = {
        "id": identity,
        "goal": "",
        "context": "",
        "toolsets": tuple(toolsets),
        "workspace": None,
        "env": _environment(passed, env),
        "cwd": _directory(cwd),
        "stdin": has_stdin,
        "path": reach.site(),
    }
    if isinstance(target, Command):
        if args or kwargs:
            msg = "a Command has its arguments in argv: args and kwargs are for callables"
            raise ConfigError(msg)
        parts["argv"] = _argv(target)
        parts["stdio"], parts["terminal"] = stdio is not None, stdio and stdio.terminal
        _check_total(target.argv, parts["env"])
    elif callable(target):
        parts["target"], places = payload.packed_target(target, reach)
        parts["path"] = [*reach.site(), *places]
        parts["args"] = payload.packed_args(args, dict(kwargs), by_value=reach.same_python)
    else:
        msg = f"a target is a callable or a Command, not {target!r}"
        raise ConfigError(msg)
    return protocol.pack(protocol.Down.RUN, parts)


def name_of(target: object) -> str:
    """A target's own name, for people."""
    if isinstance(target, Command):
        return str(target.argv[0])
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def stdin_bytes(stdin: object) -> bytes:
    """What the child reads on descriptor 0."""
    if stdin is None:
        return b""
    if isinstance(stdin, str):
        try:
            return stdin.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            msg = f"stdin must be text that UTF-8 can express: {error}. Give bytes instead."
            raise ConfigError(msg) from error
    if isinstance(stdin, bytes):
        return stdin
    msg = f"stdin must be bytes, str or None, not {type(stdin).__name__}"
    raise ConfigError(msg)


def _argv(command: Command) -> list[str]:
    if isinstance(command.argv, str) or not command.argv:
        msg = f"argv must be a list with at least the program, not {command.argv!r}"
        raise ConfigError(msg)
    argv = [_path("argv", part) for part in command.argv]
    for part in argv:
        _check_text("argv", part)
    return argv


def _path(what: str, given: object) -> str:
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"{what} must be text or a path, not {given!r:.200}")
    return os.fspath(given)


def _check_total(argv: Sequence[str], env: object) -> None:
    pieces = [*argv, *(f"{name}={value}" for name, value in env.items())] if isinstance(env, dict) else argv
    total = sum(len(os.fsencode(piece)) + 9 for piece in pieces)  # each with its end and its pointer
    if total > (most := os.sysconf("SC_ARG_MAX") - 4_096):
        msg = f"argv and environment take {total:,} bytes, Linux takes {most:,}. Use stdin."
        raise ConfigError(msg)


def _check_text(what: str, text: object) -> None:
    if type(text) is not str or "\0" in text:
        msg = f"{what} must be text without NUL characters, not {text!r:.200}"
        raise ConfigError(msg)
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError as error:
        msg = f"{what} must be text that a file name could have, not {text!r:.200}"
        raise ConfigError(msg) from error
    if size > MAX_STRING:
        msg = f"{what} has a string of {len(text):,} characters: Linux takes {MAX_STRING:,} bytes. Use stdin."
        raise ConfigError(msg)


def _environment(passed: Sequence[str], added: Mapping[str, str]) -> dict[str, str]:
    environment = {name: os.environ[name] for name in passed if name in os.environ}
    for name, value in added.items():
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
    path = _path("cwd", cwd)
    _check_text("cwd", path)
    if not os.path.isdir(path):
        msg = f"cwd {path!r} is no directory"
        raise ConfigError(msg)
    return os.path.abspath(path)
