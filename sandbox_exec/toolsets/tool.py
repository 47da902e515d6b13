"""One host tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sandbox_exec.toolsets.arguments import Arguments


@dataclass(frozen=True, slots=True)
class Tool:
    """A function of the host that a child may ask for.

    Attributes:
        call: runs in the host, on a thread that is not the loop; gets the child's arguments by keyword.
        timeout_seconds: after this the ask is answered as failed and the call is given up.
        name: what a child asks for.
        toolset: the one toolset that it is granted by.
        description: for people and models; the first paragraph of the docstring.
        arguments: what it takes; None for a tool of our own that checks for itself.
    """

    call: Callable[..., object]
    timeout_seconds: float = 30.0
    name: str = ""
    toolset: str = ""
    description: str = ""
    arguments: Arguments | None = None

    @property
    def schema(self) -> Mapping[str, object]:
        """What it takes, as JSON schema."""
        return self.arguments.schema if self.arguments is not None else {"type": "object"}

    def checked(self, args: dict[str, object]) -> dict[str, object]:
        """The arguments as the function wants them.

        Raises:
            Invalid: they do not fit; see `Arguments.checked`.
        """
        return self.arguments.checked(args) if self.arguments is not None else args
