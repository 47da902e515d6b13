"""Which tools and toolsets there are, and what the children of one executor may hold of them.

A toolset's name is defined once and for good: its first tool or its bundle makes it, nothing redefines it.
So a cycle of bundles cannot come to be, and an expansion made once stays right.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from sandbox_exec.errors import ToolsetError
from sandbox_exec.toolsets.arguments import arguments_of
from sandbox_exec.toolsets.tool import Tool

F = TypeVar("F", bound=Callable[..., object])
# Names whose grant is a kernel policy behind a wall. A host tool may join one of them.
BUILT_IN: Final = ("code", "file", "terminal", "web")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class ToolsetRegistry:
    """The toolsets that a host knows: the built-in ones, and those that it adds.

    Safe to use from any thread, and at any time: what a child holds was fixed when it was launched. The
    built-in toolsets are file, web, terminal and code.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._toolsets: dict[str, dict[str, Tool]] = {name: {} for name in BUILT_IN}
        self._bundles: dict[str, tuple[str, ...]] = {}  # already expanded
        self._homes: dict[str, str] = {}  # of every tool

    def tool(
        self,
        toolset: str,
        *,
        name: str | None = None,
        timeout_seconds: float = 30.0,
        schema: object = None,
    ) -> Callable[[F], F]:
        """Makes a function a tool that children can ask for: a decorator, which returns the function.

        It runs in the host, on a thread of the executor's, several calls at once; it must be an ordinary
        function whose parameters can all be given by name.

        Args:
            toolset: the toolset that grants it; made if there is none of this name.
            name: what a child asks for; the function's own by default. Unique in the registry.
            timeout_seconds: then the child gets ToolFailed; the call itself runs on, unheeded.
            schema: None: the annotations say what arguments are valid. A dict is shown as the JSON schema
                while the annotations are checked; a msgspec Struct class is checked and shown instead.

        Raises:
            ToolsetError: a name is not valid or taken, or the function cannot be called by an ask.
        """
        _check_name("toolset", toolset)
        if type(timeout_seconds) not in {int, float} or not 0 < timeout_seconds < math.inf:
            msg = f"timeout_seconds must be a positive number, not {timeout_seconds!r}"
            raise ToolsetError(msg)

        def register(call: F) -> F:
            own = getattr(call, "__name__", "") if name is None else name
            _check_name("tool", own)
            what = f"tool {own!r}"
            _check_ordinary(what, call)
            arguments = arguments_of(what, call, schema)
            description = (inspect.getdoc(call) or "").partition("\n\n")[0]
            made = Tool(call, timeout_seconds, own, toolset, description, arguments)
            with self._lock:
                if toolset in self._bundles:
                    msg = f"{toolset!r} is a bundle: register {what} in one of {self._bundles[toolset]}"
                    raise ToolsetError(msg)
                if own in self._homes:
                    msg = f"{what} is there already, in toolset {self._homes[own]!r}: give another name="
                    raise ToolsetError(msg)
                self._toolsets.setdefault(toolset, {})[own] = made
                self._homes[own] = toolset
            return call

        return register

    def bundle(self, name: str, toolsets: Iterable[str]) -> None:
        """Defines a toolset made of others, bundles too. It stands for what they grant, then and later.

        Raises:
            ToolsetError: a name is not valid, taken or unknown, or the bundle would contain itself.
        """
        _check_name("bundle", name)
        members = _listed(toolsets)
        with self._lock:
            if name in members or name in self._expanded(m for m in members if m in self._bundles):
                msg = f"bundle {name!r} would contain itself"
                raise ToolsetError(msg)
            expanded = self._expanded(members)
            if name in self._bundles or name in self._toolsets:
                kind = "bundle" if name in self._bundles else "toolset"
                msg = f"{name!r} is a {kind} already: it cannot be defined anew"
                raise ToolsetError(msg)
            self._bundles[name] = expanded

    def expand(self, toolsets: Iterable[str]) -> tuple[str, ...]:
        """The toolsets that these names stand for, each once, without bundles.

        Raises:
            ToolsetError: a name is unknown.
        """
        names = _listed(toolsets)
        with self._lock:
            return self._expanded(names)

    def names(self) -> tuple[str, ...]:
        """Every toolset and bundle."""
        with self._lock:
            return tuple(sorted({*self._toolsets, *self._bundles}))

    def tools(self, toolsets: Iterable[str] | None = None) -> dict[str, Tool]:
        """The tools that these toolsets grant, by name; without an argument all there are.

        Raises:
            ToolsetError: a name is unknown.
        """
        names = None if toolsets is None else _listed(toolsets)
        with self._lock:
            held = self._toolsets if names is None else self._expanded(names)
            return {name: tool for toolset in held for name, tool in self._toolsets[toolset].items()}

    def _expanded(self, names: Iterable[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in names:
            if name in self._bundles:
                found |= dict.fromkeys(self._bundles[name])
            elif name in self._toolsets:
                found[name] = None
            else:
                known = sorted({*self._toolsets, *self._bundles})
                near = difflib.get_close_matches(name, known, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
                msg = f"there is no toolset {name!r:.100}. {hint}"
                raise ToolsetError(msg)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one child holds, fixed at its launch.

    Attributes:
        toolsets: names, without bundles.
        tools: host tools, by the name that the child asks for.
    """

    toolsets: tuple[str, ...]
    tools: Mapping[str, Tool]

    @property
    def built_in(self) -> tuple[str, ...]:
        """Those that are a kernel policy."""
        return tuple(name for name in self.toolsets if name in BUILT_IN)


class Allowance:
    """What the children of one executor may hold.

    Args:
        registry: where names are looked up.
        most: what they hold unless a launch says less; None: nothing, and a launch may name anything.
    """

    def __init__(self, registry: object, most: Iterable[str] | None) -> None:
        if registry is not None and not isinstance(registry, ToolsetRegistry):
            msg = f"registry must be a ToolsetRegistry, not {registry!r:.100}"
            raise ToolsetError(msg)
        self._registry = ToolsetRegistry() if registry is None else registry
        self._most = None if most is None else self._registry.expand(most)

    def grant(self, asked: Iterable[str] | None) -> Grant:
        """What a child gets that asks for these toolsets; None: all that it may hold.

        Raises:
            ToolsetError: one is unknown, or would broaden what the executor's children may hold.
        """
        names = (self._most or ()) if asked is None else self._registry.expand(asked)
        if self._most is not None and (beyond := [name for name in names if name not in self._most]):
            held = ", ".join(self._most) or "nothing"
            msg = f"toolsets {', '.join(beyond)} would broaden what this executor's children may hold: {held}"
            raise ToolsetError(msg)
        return Grant(names, self._registry.tools(names))


def _listed(toolsets: Iterable[str]) -> tuple[str, ...]:
    if isinstance(toolsets, str):
        msg = f"toolsets must be a list of names, not {toolsets!r:.100}: write [{toolsets!r:.100}]"
        raise ToolsetError(msg)
    try:
        names = tuple(toolsets)
    except TypeError as error:
        msg = f"toolsets must be a list of names, not {toolsets!r:.100}"
        raise ToolsetError(msg) from error
    for name in names:
        if type(name) is not str:
            msg = f"a toolset's name is a str, not {name!r:.100}"
            raise ToolsetError(msg)
    return names


def _check_name(what: str, name: object) -> None:
    if type(name) is not str or not _NAME.fullmatch(name):
        hint = " Give name=." if what == "tool" else ""
        allowed = "up to 64 of A-Z, a-z, 0-9, '_', '.' and '-', a letter first"
        msg = f"{name!r:.100} is no name for a {what}: {allowed}.{hint}"
        raise ToolsetError(msg)


def _check_ordinary(what: str, call: object) -> None:
    if not callable(call):
        msg = f"{what} must be a function, not {call!r:.100}"
        raise ToolsetError(msg)
    for found in (call, getattr(call, "__call__", None)):  # noqa: B004 an object whose __call__ is async
        if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
            msg = f"{what} is async, and host tools run on threads: wrap it in a function with asyncio.run"
            raise ToolsetError(msg)
        if inspect.isgeneratorfunction(found):
            msg = f"{what} is a generator, which cannot be sent to a child: return a list"
            raise ToolsetError(msg)
