"""Named policy: TOML in, a frozen `Profile` out. An unknown key is an error, never a surprise later."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from sandbox_exec.errors import ConfigError, ProfileError

SCHEMA: Final = 1
_SHIPPED: Final = (Path(__file__).parent.parent / "profiles", Path(__file__).parents[2] / "profiles")
_UNITS: Final = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST: Final = 1 << 62
# What will be shipped with the wall.
WALLED: Final = frozenset({"pure", "reader", "workspace", "terminal", "plugin", "kanban"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one child. None: the profile's, and in a profile: no bound.

    Attributes:
        wall_seconds: from Run to the end; then the tree is ended at once.
        cpu_seconds: user and system time of the whole tree; then it is ended at once.
        memory_bytes: address space of each process (RLIMIT_AS): a MemoryError in the one that exceeds it.
        processes: how many more processes the child may start, and
        threads: how many more threads. The kernel counts both as tasks: the tree may have as many more as
            the two together, one that is not given counting as 0, and the call that exceeds that fails.
        open_files: descriptors of each process.
        file_bytes: size of a file that it writes.
        output_bytes: how much of each stream is *kept*, half of it head and half tail.
        result_bytes: text of a result or partial result.
        result_items: values in it, containers counted too.
        grace_seconds: how long each rung of the cancel ladder waits.
    """

    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    threads: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    output_bytes: int | None = None
    result_bytes: int | None = None
    result_items: int | None = None
    grace_seconds: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name))

    def tightened(self, by: Limits) -> Limits:
        """These limits with `by`'s, which may only be tighter.

        Raises:
            ConfigError: one would widen what these allow.
        """
        merged: dict[str, float | int | None] = {}
        for item in fields(self):
            own, asked = getattr(self, item.name), getattr(by, item.name)
            if asked is not None and own is not None and asked > own:
                msg = f"{item.name}={asked} would widen the profile's {own}: limits can only be tightened"
                raise ConfigError(msg)
            merged[item.name] = own if asked is None else asked
        return Limits(**merged)  # type: ignore[arg-type]  # the names are the fields'


_MAY_BE_ZERO: Final = {"processes", "threads", "output_bytes", "grace_seconds", "file_bytes"}


def _check(name: str, value: object) -> None:
    if value is None:
        return
    whole = not name.endswith("_seconds")
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds:
        msg = f"{name} must be {'a whole number' if whole else 'a number'}, not {value!r}"
        raise ConfigError(msg)
    assert isinstance(value, int | float)
    if not math.isfinite(value) or value < 0 or value > _MOST or (value == 0 and name not in _MAY_BE_ZERO):
        msg = f"{name}={value!r} can mean nothing: give a positive number, or None for the profile's own"
        raise ConfigError(msg)


@dataclass(frozen=True, slots=True)
class Profile:
    """One resolved profile.

    Attributes:
        name: the file's name.
        start: "exec"; later also "zygote".
        limits: what a launch may only tighten.
        environment: names of the host's variables that a child gets.
        require, prefer: kernel layers.
    """

    name: str
    start: str = "exec"
    limits: Limits = field(default_factory=Limits)
    environment: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()


def load_profile(name: str) -> Profile:
    """The shipped profile of this name.

    Raises:
        ProfileError: unknown, malformed, or it asks for kernel layers, which this version cannot enforce.
    """
    if type(name) is not str or "\0" in name or not name:
        msg = f"a profile is named by a non-empty string, not {name!r}"
        raise ProfileError(msg)
    known = shipped()
    if name in WALLED and name not in known:
        raise ProfileError(_no_layers(name, "Landlock, seccomp, namespaces"))
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(known))}."
        msg = f"no profile {name!r}. {hint}"
        raise ProfileError(msg)
    profile = parse(name, known[name].read_text(encoding="utf-8"))
    if profile.require:
        raise ProfileError(_no_layers(name, ", ".join(profile.require)))
    return profile


def _no_layers(name: str, layers: str) -> str:
    return (
        f"profile {name!r} asks for kernel layers ({layers}), and this version has none. "
        "Use profile 'none' for code that you trust, and nothing for code that you do not."
    )


def shipped() -> dict[str, Path]:
    """The profiles that come with this package, by name."""
    folder = next((folder for folder in _SHIPPED if folder.is_dir()), None)
    return {} if folder is None else {file.stem: file for file in folder.glob("*.toml")}


_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("schema", "start", "limits", "env", "layers"),
    "limits": tuple(f.name.removesuffix("_seconds").removesuffix("_bytes") for f in fields(Limits)),
    "env": ("pass",),
    "layers": ("require", "prefer"),
}


def parse(name: str, text: str) -> Profile:
    """A profile from its TOML.

    Raises:
        ProfileError: it is not valid; the text names the key.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        msg = f"profile {name!r}: {error}"
        raise ProfileError(msg) from error
    for table in ("", "limits", "env", "layers"):
        _know_keys(name, table, document.get(table, {}) if table else document)
    if document.get("schema") != SCHEMA:
        msg = f"profile {name!r}: schema must be {SCHEMA}, not {document.get('schema')!r}"
        raise ProfileError(msg)
    layers = document.get("layers", {})
    return Profile(
        name,
        str(document.get("start", "exec")),
        _limits(name, document.get("limits", {})),
        tuple(document.get("env", {}).get("pass", ())),
        tuple(layers.get("require", ())),
        tuple(layers.get("prefer", ())),
    )


def _know_keys(name: str, table: str, found: Mapping[str, object]) -> None:
    for key in found:
        if key not in _KEYS[table]:
            near = difflib.get_close_matches(key, _KEYS[table], 1)
            where = f"[{table}] " if table else ""
            hint = f" Did you mean {near[0]!r}?" if near else ""
            msg = f"profile {name!r}: unknown key {where}{key!r}.{hint}"
            raise ProfileError(msg)


def _limits(name: str, table: Mapping[str, object]) -> Limits:
    values: dict[str, float | int | None] = {}
    for item in fields(Limits):
        stem = item.name.removesuffix("_seconds").removesuffix("_bytes")
        raw = table.get(stem)
        units = (
            _SECONDS
            if item.name.endswith("_seconds")
            else _UNITS
            if item.name.endswith("_bytes")
            else {"": 1}
        )
        try:
            value = None if raw is None else _quantity(raw, units)
        except ValueError as error:
            msg = f"profile {name!r}: [limits] {stem} = {raw!r}: {error}"
            raise ProfileError(msg) from error
        values[item.name] = (
            None if value == 0 and item.name not in {"grace_seconds", "output_bytes"} else value
        )
    return Limits(**values)  # type: ignore[arg-type]  # the names are the fields'


def _quantity(raw: object, units: Mapping[str, float]) -> float | int:
    if type(raw) is int and "" in units:
        return raw
    if isinstance(raw, str):
        for unit in sorted(units, key=len, reverse=True):
            if unit and raw.endswith(unit) and raw.removesuffix(unit).replace(".", "", 1).isdigit():
                amount = float(raw.removesuffix(unit)) * units[unit]
                return amount if units is _SECONDS else int(amount)
    msg = f"write {' or '.join(repr('5' + u) for u in units)}"
    raise ValueError(msg)
