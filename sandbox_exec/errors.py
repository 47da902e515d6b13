"""Every exception of the host side. Message form: what we did, to what, what happened; then a hint."""

from __future__ import annotations


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
    """The executor itself could not be started (no launcher, no descriptors)."""


class ExecutorClosed(SandboxError, RuntimeError):
    """The executor was shut down, or this process is a forked copy of the one that made it."""


class ChildError(SandboxError):
    """A child did not succeed; raised by `Outcome.unwrap`."""


class ChildFailed(ChildError):
    """The target raised, exited with an error, or met a limit."""


class ChildInterrupted(ChildError):
    """The process died, or broke the protocol."""


class ChildCancelled(ChildError):
    """The child was cancelled or killed on request."""


class InvalidTransition(SandboxError):
    """An event that cannot happen in this state: a bug of ours. The message carries the child's story."""
