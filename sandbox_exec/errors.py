"""Every exception of the host side. Message form: what we did, to what, what happened; then a hint."""

from __future__ import annotations

import builtins
from functools import cache
from typing import Final


class SandboxError(Exception):
    """Base of all errors raised by this package."""


class ConfigError(SandboxError):
    """The request itself is wrong; raised before a process exists."""


class ProfileError(ConfigError):
    """A profile is unknown, malformed, or asks for what this version cannot enforce."""


class ToolsetError(ConfigError):
    """A toolset or tool is unknown, or would broaden what the caller holds."""


class BoundaryUnavailable(SandboxError):
    """The kernel lacks a layer that the profile requires.

    Attributes:
        layer: the layer's name, as in a profile's ``[layers]``.
        found: what was found instead.
        hint: what to do about it.
    """

    def __init__(self, layer: str, found: str, hint: str) -> None:
        super().__init__(layer, found, hint)
        self.layer, self.found, self.hint = layer, found, hint

    def __str__(self) -> str:
        return f"layer {self.layer!r} is required but {self.found}. {self.hint}"


class LaunchError(SandboxError):
    """The executor itself could not be started, or has no slot for a launch that may not wait."""


class ExecutorClosed(SandboxError, RuntimeError):
    """The executor was shut down, or this process is a forked copy of the one that made it."""


class ChildError(SandboxError):
    """A child did not succeed; raised by `Outcome.unwrap` and `Future.result`."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError's own would quote it


class ChildFailed(ChildError):
    """The target raised, exited with an error, or met a limit."""


# Not the groups, which cannot be made of a message, nor what ends iteration, which no generator or
# coroutine lets pass.
_BUILTIN: Final[dict[str, type[Exception]]] = {
    f"builtins.{name}": cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type)
    and issubclass(cls, Exception)
    and not issubclass(cls, BaseExceptionGroup | StopIteration | StopAsyncIteration)
}


def failed_as(type_name: str, message: str) -> ChildFailed:
    """A `ChildFailed` that is also an instance of the built-in class of this qualified name, if it is one."""
    return _mixed(type_name)(message) if type_name in _BUILTIN else ChildFailed(message)


@cache
def _mixed(type_name: str) -> type[ChildFailed]:
    builtin = _BUILTIN[type_name]

    def __init__(self: Exception, message: str) -> None:  # noqa: N807 it becomes the class's
        try:
            builtin.__init__(self, message)
        except TypeError:  # UnicodeDecodeError and its kind are made of five parts
            Exception.__init__(self, message)
        self.args = (message,)

    def __reduce__(self: Exception) -> tuple[object, ...]:  # noqa: N807 "
        return failed_as, (type_name, self.args[0])

    members = {"__init__": __init__, "__reduce__": __reduce__, "__module__": __name__}
    members["__doc__"] = ChildFailed.__doc__
    return type("ChildFailed", (ChildFailed, builtin), members)


class ChildInterrupted(ChildError):
    """The process died, or broke the protocol."""


class ChildCancelled(ChildError):
    """The child was cancelled or killed on request."""


class InvalidTransition(SandboxError):
    """An event that cannot happen in this state: a bug of ours. The message carries the child's story."""
