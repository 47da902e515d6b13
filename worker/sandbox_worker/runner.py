"""Runs the one assignment and turns every ending into one Result or Failure; then the process ends.

The assignment is a dict: ``id goal context toolsets workspace`` (for the context), ``path`` (appended to
sys.path), ``env`` (replaces the environment), ``cwd``, ``stdin`` (whether a descriptor for it follows), and
either ``argv`` (a command), with ``stdio`` (whether its three descriptors follow) and ``terminal`` (which of
them is its controlling terminal), or ``target`` (see `_target`) with ``args`` (see `conversation.load`).
"""

import _signal
import builtins
import marshal
import posix
import sys

from sandbox_worker import channel, conversation, protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    Assignment = dict[str, Any]

_TEXT_BYTES = 40_000  # of a traceback, so that a Failure fits one frame
_BALLAST_BYTES = 2 << 20  # address space to report a MemoryError with, under RLIMIT_AS


def run(assignment: "Assignment", own: conversation.Context) -> None:
    """Never returns."""
    owner = posix.getpid()
    _prepare(assignment, own)
    report = _command if "argv" in assignment else _call
    header, text = report(assignment, own)
    if posix.getpid() != owner:  # the target forked, and this copy fell out of it
        posix._exit(0)  # noqa: SLF001
    _flush()
    channel.send_value(header, text)
    posix._exit(0)  # noqa: SLF001 threads and atexit hooks do not run on


def _prepare(assignment: "Assignment", own: conversation.Context) -> None:
    for name in ("id", "goal", "context", "toolsets", "workspace"):
        setattr(own, name, assignment[name])
    environment = {
        key.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for key, value in assignment["env"].items()
    }
    for key in list(posix.environ):
        posix.unsetenv(key)
    posix.environ.clear()
    for key, value in environment.items():
        posix.putenv(key, value)
    posix.environ.update(environment)  # what os.environ will be made from
    sys.path.extend(assignment["path"])
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # `site`, which we do without, would have made them
    if assignment["stdin"]:
        (fd,) = channel.receive_descriptors()
        posix.lseek(fd, 0, 0)
        posix.dup2(fd, 0)
        posix.close(fd)


def _call(assignment: "Assignment", own: conversation.Context) -> tuple[str, bytes]:
    ballast = bytes(_BALLAST_BYTES)  # calloc: not touched until it is freed
    try:
        with conversation.exposed(own):
            _enter(assignment["cwd"])
            args, kwargs = conversation.load(assignment["args"])
            value = _target(assignment["target"])(*args, **kwargs)
    except SystemExit as error:
        code = _kept(SystemExit, "code", error)
        if code is None or (type(code) in (int, bool) and code == 0):
            return _result(None, own)
        return _failure("exit", error, _text(code))
    except conversation.Cancelled as error:
        return _failure("cancelled", error, "")
    except BaseException as error:  # noqa: BLE001 every ending is reported
        del ballast
        return _failure("raised", error, None)
    return _result(value, own)


def _enter(cwd: str | None) -> None:
    if cwd is not None:
        posix.chdir(cwd)


def _target(target: "tuple[Any, ...]") -> "Any":  # noqa: ANN401 whatever the user's is
    """The callable: from its code, by reference, or by value (see the host's payload.packed_target)."""
    if target[0] == "code":
        return _from_code(*target[1:])
    if target[0] == "value":
        return conversation.load(("pickle", target[1]))
    found = __import__(target[1], fromlist=("x",))
    for name in target[2].split("."):
        found = getattr(found, name)
    return found


def _from_code(
    code: bytes, name: str, module: str, package: str | None, modules: dict[str, str], defaults: bytes
) -> "Callable[..., object]":
    own: dict[str, object] = {"__name__": module, "__package__": package, "__builtins__": builtins}
    for bound, imported in modules.items():
        own[bound] = __import__(imported, fromlist=("x",))
    kind: Any = type(_from_code)  # types.FunctionType, without the module
    function: Callable[..., object] = kind(marshal.loads(code), own, name)
    function.__defaults__, function.__kwdefaults__ = marshal.loads(defaults)
    own[name] = function
    return function


def _result(value: object, own: conversation.Context) -> tuple[str, bytes]:
    from sandbox_worker import values

    try:
        return '{"t":"result"}', values.encode(value, *own._limits)  # noqa: SLF001
    except values.TooLarge as error:
        return _failure("too_large", error, str(error))
    except values.NotSerializable as error:
        return _failure("not_serializable", error, f"RESULT_NOT_SERIALIZABLE at {error.path}: {error.reason}")
    except BaseException as error:  # noqa: BLE001 hostile or unlucky objects; MemoryError
        return _failure("raised", error, None)


def _failure(kind: str, error: BaseException, message: str | None) -> tuple[str, bytes]:
    """A Failure: facts first, so that even a MemoryError leaves something to report."""
    cls = type(error)
    name, qualified = _attribute(cls, "__name__"), _attribute(cls, "__qualname__")
    number = _kept(OSError, "errno", error) if issubclass(cls, OSError) else None
    trace = b""
    if kind in {"raised", "exit"}:
        trace = _traceback(error)
    if message is None:
        message = _text(error)
    from sandbox_worker import values

    header = '{"t":"failure","kind":"%s","name":%s,"type_name":%s,"message":%s,"errno":%d}' % (
        kind,
        values.quote(name, protocol.MAX_NAME),
        values.quote(f"{_attribute(cls, '__module__')}.{qualified}", protocol.MAX_NAME),
        values.quote(message, protocol.MAX_ERROR_MESSAGE),
        number if type(number) is int and 0 <= number < 1 << 16 else 0,
    )
    return header, trace[-(protocol.FRAME_BYTES - len(header.encode()) - 1) :]


def _kept(builtin: type, name: str, of: object) -> "Any":  # noqa: ANN401 whatever it is
    """What a built-in base class keeps of an object, never asked of the object: its class may be hostile."""
    return builtin.__dict__[name].__get__(of)


def _attribute(cls: type, name: str) -> str:
    """A text that `type` itself keeps of a class, past a metaclass that has its own idea of it."""
    try:
        return str.__str__(_kept(type, name, cls))
    except (AttributeError, TypeError):  # a __module__ that is no text
        return "?"


def _text(of: object) -> str:
    """The text of a hostile object: whatever its __str__ does, and cut before it is copied."""
    try:
        return str.__getitem__(str(of), slice(protocol.MAX_ERROR_MESSAGE))
    except BaseException as second:  # noqa: BLE001 hostile
        return f"<its own text raised {_attribute(type(second), '__name__')}>"


def _traceback(error: BaseException) -> bytes:
    frames = _kept(BaseException, "__traceback__", error)
    if issubclass(type(error), MemoryError):
        _let_go(frames)
    try:
        import traceback

        # The first frames are ours; the last lines name the cause, so the cut is at the front.
        text = "".join(traceback.format_exception(type(error), error, frames.tb_next if frames else None))
    except BaseException as second:  # noqa: BLE001 out of memory, or a hostile exception
        text = f"(no traceback: {type(second).__name__})\n"
    encoded = text.encode("utf-8", "backslashreplace")
    return encoded[-_TEXT_BYTES:]


def _let_go(frames: "TracebackType | None") -> None:
    """Frees what the target's frames hold: without that there is no memory to report with."""
    while frames is not None:
        try:
            frames.tb_frame.clear()
        except RuntimeError:  # still running: ours
            pass
        frames = frames.tb_next


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]  # None is one of the ways to be broken
        except BaseException:  # noqa: BLE001, S112 replaced, closed or broken by the target
            continue


def _command(assignment: "Assignment", own: conversation.Context) -> tuple[str, bytes]:
    """Becomes the command: its exit status is read from the kernel, by the host."""
    try:
        try:
            with conversation.exposed(own):
                if assignment["stdio"]:
                    _take_stdio(assignment["terminal"])
                _enter(assignment["cwd"])
                search = assignment["env"].get("PATH", "/usr/local/bin:/usr/bin:/bin")
                path = _find(assignment["argv"][0], search)
        except conversation.Cancelled as error:
            return _failure("cancelled", error, "")
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # the host passes signals on from the next line
        channel.send('{"t":"executing"}')
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, and that outlives execve
            _signal.signal(number, _signal.SIG_DFL)
        posix.execve(path, assignment["argv"], posix.environ)
    except OSError as error:
        return _failure("raised", error, None)
    raise AssertionError  # unreachable: execve returns only by raising


def _take_stdio(terminal: int | None) -> None:
    fds = channel.receive_descriptors()
    if terminal is not None:
        posix.login_tty(posix.dup(fds[terminal]))  # this process leads its session already
    for number, fd in enumerate(fds):
        posix.dup2(fd, number)
        posix.close(fd)


def _find(program: str, search: str) -> str:
    if "/" in program:
        return program
    for directory in search.split(":"):
        candidate = f"{directory or '.'}/{program}"
        try:
            is_file = posix.stat(candidate).st_mode & 0o170000 == 0o100000
        except OSError:
            continue
        if is_file and posix.access(candidate, posix.X_OK):
            return candidate
    raise FileNotFoundError(2, f"no program of this name in {search}", program)
