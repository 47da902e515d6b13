"""A multiprocessing sandbox executor: each job in a process of its own, ended truthfully."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox_exec.confinement.profile import Limits, Profile, load_profile
    from sandbox_exec.engine.child import Child, Receipt
    from sandbox_exec.engine.outcome import ErrorInfo, Event, ExitInfo, Outcome, Usage
    from sandbox_exec.engine.output import Output
    from sandbox_exec.engine.payload import Command
    from sandbox_exec.engine.states import SubagentState
    from sandbox_exec.errors import (
        BoundaryUnavailable,
        ChildCancelled,
        ChildError,
        ChildFailed,
        ChildInterrupted,
        ConfigError,
        ExecutorClosed,
        LaunchError,
        ProfileError,
        SandboxError,
        ToolsetError,
    )
    from sandbox_exec.executor import SandboxExecutor
    from sandbox_exec.toolsets.registry import ToolsetRegistry

__version__ = "0.1.0"
__all__ = [
    "BoundaryUnavailable",
    "Child",
    "ChildCancelled",
    "ChildError",
    "ChildFailed",
    "ChildInterrupted",
    "Command",
    "ConfigError",
    "ErrorInfo",
    "Event",
    "ExecutorClosed",
    "ExitInfo",
    "LaunchError",
    "Limits",
    "Outcome",
    "Output",
    "Profile",
    "ProfileError",
    "Receipt",
    "SandboxError",
    "SandboxExecutor",
    "SubagentState",
    "ToolsetError",
    "ToolsetRegistry",
    "Usage",
    "load_profile",
]

# Public names are imported on first use: the command line must be able to print its help, and a host to
# import one of the errors, without the engine.
_HOMES = {
    "confinement.profile": ("Limits", "Profile", "load_profile"),
    "engine.child": ("Child", "Receipt"),
    "engine.outcome": ("ErrorInfo", "Event", "ExitInfo", "Outcome", "Usage"),
    "engine.output": ("Output",),
    "engine.payload": ("Command",),
    "engine.states": ("SubagentState",),
    "executor": ("SandboxExecutor",),
    "toolsets.registry": ("ToolsetRegistry",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # with it, a type checker would let every misspelt name pass

    def __getattr__(name: str) -> object:
        if name not in __all__:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        found = getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
