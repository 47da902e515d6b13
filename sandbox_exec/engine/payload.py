"""What travels down: targets by reference or by value, arguments marshalled where exact, else pickled.

Pickle flows down, never up. A callable that the child can import goes by name; the rest by cloudpickle.
Everything that cannot be sent is a ConfigError before a process exists.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final

from sandbox_exec.errors import ConfigError

_EXACT: Final = frozenset({type(None), bool, int, float, str, bytes})
_SMALL: Final = 1_000  # items; larger ones are pickled rather than walked in Python

Packed = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run in place of a callable.

    Attributes:
        argv: the program and its arguments; a name without a slash is looked up in the child's PATH.
    """

    argv: Sequence[str]


def packed(value: object) -> Packed:
    """Encodes a value for the child: marshal where it restores exactly, pickle elsewhere.

    marshal would turn a bytearray or an array silently into bytes, so it gets only what it keeps.
    """
    if _is_plain(value):
        return "marshal", marshal.dumps(value)  # type: ignore[arg-type]  # just looked through
    import cloudpickle

    return "pickle", cloudpickle.dumps(value)


def _is_plain(value: object) -> bool:
    todo, seen = [value], 0
    while todo:
        item = todo.pop()
        seen += 1
        kind = type(item)
        if kind in _EXACT:
            continue
        if seen > _SMALL:
            return False
        if kind is tuple or kind is list:
            todo += item  # type: ignore[arg-type]
        elif kind is dict:
            todo += item.keys()  # type: ignore[attr-defined]
            todo += item.values()  # type: ignore[attr-defined]
        else:
            return False
    return True


def packed_args(args: Sequence[object], kwargs: dict[str, object]) -> Packed:
    """Encodes a call's arguments.

    Raises:
        ConfigError: one of them cannot be sent; it is named.
    """
    try:
        return packed((tuple(args), kwargs))
    except Exception as error:
        name = next((n for n, v in _named(args, kwargs) if not _can_send(v)), "the arguments together")
        msg = f"cannot send {name} to the child: {type(error).__name__}: {error}. Send plain data instead."
        raise ConfigError(msg) from error


def _named(args: Sequence[object], kwargs: dict[str, object]) -> list[tuple[str, object]]:
    return [(f"argument {i}", v) for i, v in enumerate(args)] + [
        (f"argument {k!r}", v) for k, v in kwargs.items()
    ]


def _can_send(value: object) -> bool:
    try:
        packed(value)
    except Exception:  # noqa: BLE001 whatever a hostile __reduce__ raises
        return False
    return True


def packed_target(target: Callable[..., object]) -> tuple[tuple[object, ...], list[str]]:
    """Encodes a callable, and tells which directories of the host's path its module needs.

    A self-contained function goes as its code: nothing is imported for it but the modules it names. What
    the child can import goes by reference, the rest by value.

    Raises:
        ConfigError: it cannot be sent at all.
    """
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    places = _directories(module) if isinstance(module, str) else []
    if isinstance(target, FunctionType) and (modules := _named_modules(target)) is not None:
        made_of = (target.__name__, module, target.__globals__.get("__package__"), modules)
        defaults = (target.__defaults__, target.__kwdefaults__)
        return ("code", marshal.dumps(target.__code__), *made_of, marshal.dumps(defaults)), places
    if isinstance(module, str) and isinstance(name, str) and _is_importable(target, module, name):
        return ("ref", module, name), places
    import cloudpickle

    try:
        return ("value", cloudpickle.dumps(target)), places
    except Exception as error:
        msg = f"cannot send {target!r} by value: {type(error).__name__}: {error}. Make it importable by name."
        raise ConfigError(msg) from error


# What could see more of a function's module than the names in its code.
_INTROSPECTIVE: Final = frozenset(
    {"globals", "locals", "vars", "dir", "eval", "exec", "compile", "__import__"}
)


def _named_modules(function: FunctionType) -> dict[str, str] | None:
    """The standard library's modules that a self-contained function names, or None if it is none.

    Self-contained: no closure, no attributes, plain defaults, and every name in its code that its module
    binds is itself or a module of the standard library. Importing its own module could then make no
    difference but the time it takes, which for a program's main module is often seconds.
    """
    plain = _is_plain((function.__defaults__, function.__kwdefaults__))
    if function.__closure__ or function.__dict__ or not plain:
        return None
    modules = {}
    for name in _names(function.__code__):
        if name in _INTROSPECTIVE:
            return None
        found = function.__globals__.get(name, None)
        if isinstance(found, ModuleType) and found.__name__.partition(".")[0] in sys.stdlib_module_names:
            modules[name] = found.__name__
        elif name in function.__globals__ and found is not function and name != "__name__":
            return None
    return modules


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _is_importable(target: object, module: str, name: str) -> bool:
    """True if the child will find this very object under this name in a module that has a file."""
    found: object = sys.modules.get(module)
    if found is None or module == "__main__" or getattr(found, "__spec__", None) is None:
        return False
    for part in name.split("."):
        if part == "<locals>":
            return False
        found = getattr(found, part, None)
    return found is target


def _directories(module: str) -> list[str]:
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(top, "__file__", None)
    locations = list(getattr(top, "__path__", []))  # a namespace package has several, and no file
    if not locations and file is None:
        return []  # built in or frozen
    return [str(Path(place).parent) for place in (locations or [file]) if place is not None]


def site_directories() -> list[str]:
    """The host's site-packages directories, in its order: a child starts without `site`."""
    return [entry for entry in sys.path if entry.rpartition("/")[2] in {"site-packages", "dist-packages"}]
