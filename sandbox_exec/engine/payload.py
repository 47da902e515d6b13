"""What travels down: targets by reference or by value, arguments marshalled where exact, else pickled.

Pickle flows down, never up. A callable that the child can import goes by name; the rest by cloudpickle.
Everything that cannot be sent is a ConfigError before a process exists.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
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


def packed(value: object, *, by_value: bool = True) -> Packed:
    """Encodes a value for the child: marshal where it restores exactly, pickle elsewhere.

    Args:
        value: whatever can be sent.
        by_value: functions and classes that cannot be imported may go along.

    marshal would turn a bytearray or an array silently into bytes, so it gets only what it keeps.
    """
    if _is_plain(value):
        return "marshal", marshal.dumps(value)  # type: ignore[arg-type]  # just looked through
    if not by_value:
        return "pickle", _watched_dumps(value, by_value=False)[0]
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


def packed_args(args: Sequence[object], kwargs: dict[str, object], *, by_value: bool = True) -> Packed:
    """Encodes a call's arguments.

    Args:
        args: by position.
        kwargs: by name.
        by_value: functions and classes that cannot be imported may go along.

    Raises:
        ConfigError: one of them cannot be sent; it is named.
    """
    try:
        return packed((tuple(args), kwargs), by_value=by_value)
    except Exception as error:
        named = _named(args, kwargs)
        name = next((n for n, v in named if not _can_send(v, by_value=by_value)), "the arguments together")
        msg = f"cannot send {name} to the child: {type(error).__name__}: {error}. Send plain data instead."
        raise ConfigError(msg) from error


def _named(args: Sequence[object], kwargs: dict[str, object]) -> list[tuple[str, object]]:
    return [(f"argument {i}", v) for i, v in enumerate(args)] + [
        (f"argument {k!r}", v) for k, v in kwargs.items()
    ]


def _can_send(value: object, *, by_value: bool) -> bool:
    try:
        packed(value, by_value=by_value)
    except Exception:  # noqa: BLE001 whatever a hostile __reduce__ raises
        return False
    return True


@dataclass(frozen=True, slots=True)
class Reach:
    """Which modules a child can import beside the standard library's.

    Attributes:
        imports: top-level packages whose directories it is given, beside the target's own; () gives it none.
        same_python: its interpreter is of the host's minor version. Bytecode means something else to another
            one, and extension modules do not load there: nothing goes by value, and no site-packages.
    """

    imports: Sequence[str] | None = None
    same_python: bool = True

    def site(self) -> list[str]:
        """The host's site-packages that the child searches."""
        return site_directories() if self.same_python else []

    def directories(self, module: object) -> list[str]:
        """The directories for a target of this module, in the order of the host's sys.path.

        Raises:
            ConfigError: one of `imports` is not to be found.
        """
        tops = list(self.imports or ())
        if self.imports != () and isinstance(module, str):
            tops.append(module.partition(".")[0])
        found = {place for top in tops for place in self._places(top, asked=top in (self.imports or ()))}
        order = {entry or os.getcwd(): number for number, entry in enumerate(sys.path)}
        return sorted(found, key=lambda place: (order.get(place, len(order)), place))

    def missing(self, modules: Iterable[str], directories: Sequence[str]) -> str:
        """The first of these modules that a child with these directories will not find, or ""."""
        known = {*directories, *self.site()}
        for module in modules:
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top in {"sandbox_worker", "__main__"}:
                continue
            places = self._places(top, asked=False)
            if not known.intersection(places):
                return module
        return ""

    @staticmethod
    def _places(top: str, *, asked: bool) -> list[str]:
        loaded = sys.modules.get(top)
        file, inside = getattr(loaded, "__file__", None), list(getattr(loaded, "__path__", ()))
        if loaded is None:
            try:
                spec = importlib.util.find_spec(top)
            except (ImportError, ValueError):
                spec = None
            if spec is None and asked:
                msg = f"imports={top!r}: no module of this name is to be found here"
                raise ConfigError(msg)
            file = spec.origin if spec is not None and spec.has_location else None
            inside = list(spec.submodule_search_locations or ()) if spec is not None else []
        # A namespace package has several directories, and no file; a built-in module has none.
        return [str(Path(place).parent) for place in (inside or [file]) if place is not None]


def packed_target(target: Callable[..., object], reach: Reach) -> tuple[tuple[object, ...], list[str]]:
    """Encodes a callable, and tells which directories of the host's path the child needs.

    A self-contained function goes as its code: nothing is imported for it but the modules it names. What
    the child can import goes by reference, the rest by value.

    Raises:
        ConfigError: it cannot be sent at all, or needs a module that the child will not find.
    """
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    places = reach.directories(module)
    if not reach.same_python:
        return _by_name(target, module, name, reach, places), places
    if isinstance(target, FunctionType) and (modules := _named_modules(target)) is not None:
        made_of = (target.__name__, module, target.__globals__.get("__package__"), modules)
        defaults = (target.__defaults__, target.__kwdefaults__)
        return ("code", marshal.dumps(target.__code__), *made_of, marshal.dumps(defaults)), places
    if isinstance(module, str) and isinstance(name, str) and _is_importable(target, module, name):
        if not reach.missing([module], places):
            return ("ref", module, name), places
        return _by_value(target, module, reach, places)
    return _by_value(target, "", reach, places)


def _by_name(
    target: object, module: object, name: object, reach: Reach, places: list[str]
) -> tuple[object, ...]:
    """For an interpreter of another version."""
    names = isinstance(module, str) and isinstance(name, str) and _is_importable(target, module, name)
    if not names or reach.missing([str(module)], places):
        msg = (
            f"cannot send {target!r} to another version of Python: by value needs the host's own. "
            "Make it importable by name, from the standard library or a package outside site-packages."
        )
        raise ConfigError(msg)
    return "ref", module, name


def _by_value(
    target: Callable[..., object], module: str, reach: Reach, places: list[str]
) -> tuple[tuple[object, ...], list[str]]:
    """By cloudpickle; what belongs to `module` goes along, rather than as a reference to it."""
    import cloudpickle

    own = sys.modules.get(module)
    try:
        if own is not None:
            cloudpickle.register_pickle_by_value(own)
        try:
            data, modules = _watched_dumps(target)
        finally:
            if own is not None:
                cloudpickle.unregister_pickle_by_value(own)
    except Exception as error:
        msg = f"cannot send {target!r} by value: {type(error).__name__}: {error}. Make it importable by name."
        raise ConfigError(msg) from error
    if missing := reach.missing((name for name in modules if name != module), places):
        msg = (
            f"cannot send {target!r} to the child: it needs the module {missing!r}, which the child will not "
            f"find. Give imports=[{missing.partition('.')[0]!r}] to the executor."
        )
        raise ConfigError(msg)
    return ("value", data), places


_NAMED: Final = (type, FunctionType, BuiltinFunctionType)


def _watched_dumps(value: object, *, by_value: bool = True) -> tuple[bytes, list[str]]:
    """The pickle, and the modules that it refers to by name.

    Raises:
        TypeError: something would go by value that must not.
    """
    import io

    import cloudpickle

    modules: list[str] = []

    class Watching(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        def persistent_id(self, found: object) -> None:
            module = getattr(found, "__module__", None)
            if isinstance(found, ModuleType):
                modules.append(found.__name__)
            elif isinstance(found, _NAMED) and isinstance(module, str):
                if _is_importable(found, module, found.__qualname__):
                    modules.append(module)
                elif not by_value:
                    raise TypeError(f"{found!r:.200} cannot be imported by name")

    made = io.BytesIO()
    Watching(made).dump(value)
    return made.getvalue(), modules


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
    names = _names(function.__code__)
    for name in names:
        if name in _INTROSPECTIVE:
            return None
        found = function.__globals__.get(name, None)
        if isinstance(found, ModuleType) and found.__name__.partition(".")[0] in sys.stdlib_module_names:
            modules[name] = found.__name__
        elif name in function.__globals__ and found is not function and name != "__name__":
            return None
    # Of `importlib.util` the code names "importlib" and an attribute: under no name of its own, for only
    # the import matters.
    todo = list(modules.values())
    while todo:
        package = todo.pop()
        found = [inner for name in names if (inner := f"{package}.{name}") in sys.modules]
        modules |= {inner: inner for inner in found}
        todo += found
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


def site_directories() -> list[str]:
    """The host's site-packages directories, in its order: a child starts without `site`."""
    return [entry for entry in sys.path if entry.rpartition("/")[2] in {"site-packages", "dist-packages"}]
