"""A multiprocessing sandbox executor: each job in a process of its own, ended truthfully."""

from sandbox_exec.confinement.profile import Limits
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
    "ProfileError",
    "Receipt",
    "SandboxError",
    "SandboxExecutor",
    "SubagentState",
    "ToolsetError",
    "Usage",
]
