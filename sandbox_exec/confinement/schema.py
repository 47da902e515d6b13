"""The text of one profile, read strictly: whatever is wrong is named with its file, line and key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Final, TypeVar

from sandbox_exec.confinement.limits import Limits
from sandbox_exec.confinement.policy import SCHEMA, check_layers, check_start, check_variables, nearest
from sandbox_exec.errors import ConfigError, ProfileError

Value = TypeVar("Value")
Default = TypeVar("Default")
MAX_CHARACTERS: Final = 65_536
MAX_DESCRIPTION: Final = 200
_BYTES: Final[Mapping[str, Decimal]] = {
    "B": Decimal(1),
    "K": Decimal(1 << 10),
    "M": Decimal(1 << 20),
    "G": Decimal(1 << 30),
    "T": Decimal(1 << 40),
}
_SECONDS: Final[Mapping[str, Decimal]] = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_AMOUNT: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([a-zA-Z]+)")
# Field of Limits by its key; a profile's 0 is no bound, but for these two.
_LIMITS: Final = {
    item.name.removesuffix("_seconds").removesuffix("_bytes"): item.name for item in fields(Limits)
}
_ZERO_COUNTS: Final = {"grace", "output"}
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("schema", "description", "extends", "start", "limits", "env", "layers"),
    "limits": tuple(_LIMITS),
    "env": ("pass",),
    "layers": ("require", "prefer"),
}
# They would promise what nothing here keeps: better no profile than one that is believed.
_OF_THE_WALL: Final = {"fs", "net", "toolsets"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a profile's text comes from, for errors.

    Attributes:
        name: the profile's.
        file: its path; empty for a text alone.
        text: all of it.
    """

    name: str
    file: str
    text: str

    def error(self, message: str, *path: str) -> ProfileError:
        """The error about the key at this path."""
        return self.error_at(_line(self.text, path), message)

    def error_at(self, line: int, message: str) -> ProfileError:
        """The error about this line."""
        place = f"{self.file}, line {line}" if self.file else f"line {line}"
        return ProfileError(f"profile {self.name!r}, {place}: {message}")


@dataclass(frozen=True, slots=True)
class Document:
    """What one file says; None where it says nothing."""

    description: str = ""
    extends: str | None = None
    start: str | None = None
    limits: Limits = field(default_factory=Limits)
    environment: tuple[str, ...] | None = None
    require: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()


def read(source: Source) -> Document:
    """Reads one profile's text.

    Raises:
        ProfileError: it is not valid.
    """
    document = _parsed(source)
    _know_keys(source, document)
    schema = document.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise source.error(f"schema must be {SCHEMA}, not {schema!r:.200}", "schema")
    return Document(
        _checked(source, document, _description, "description", default=""),
        _checked(source, document, _reference, "extends", default=None),
        _checked(source, document, check_start, "start", default=None),
        _limits(source, _table(source, document, "limits")),
        _checked(source, document, check_variables, "env", "pass", default=None),
        _checked(source, document, check_layers, "layers", "require", default=()),
        _checked(source, document, check_layers, "layers", "prefer", default=()),
    )


def _checked(
    source: Source,
    document: Mapping[str, object],
    check: Callable[[object], Value],
    *path: str,
    default: Default,
) -> Value | Default:
    *tables, key = path
    table = _table(source, document, tables[0]) if tables else document
    if key not in table:
        return default
    try:
        return check(table[key])
    except (TypeError, ValueError) as error:
        where = f"[{tables[0]}] " if tables else ""
        raise source.error(f"{where}{key}: {error}", *path) from error


def _parsed(source: Source) -> dict[str, object]:
    if len(source.text) > MAX_CHARACTERS:
        raise source.error_at(1, f"a profile has at most {MAX_CHARACTERS:,} characters")
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        if found is None:
            raise source.error_at(len(source.text.rstrip().split("\n")), str(error)) from error
        said = f"{str(error)[: found.start()]} (column {found[2]})"
        raise source.error_at(int(found[1]), said) from error
    except (RecursionError, ValueError) as error:  # nested too deep; more digits than Python reads
        raise source.error_at(1, f"no TOML that can be read: {error}") from error


def _know_keys(source: Source, document: Mapping[str, object]) -> None:
    for table, known in _KEYS.items():
        for key in _table(source, document, table) if table else document:
            path = (table, key) if table else (key,)
            if path[0] in _OF_THE_WALL:
                raise source.error(
                    f"{key!r} belongs to the wall, which this version does not have: nothing would keep what "
                    "it says. Leave it out.",
                    *path,
                )
            if key not in known:
                where = f"[{table}] " if table else ""
                raise source.error(f"unknown key {where}{key!r}{nearest(key, known)}", *path)


def _table(source: Source, document: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise source.error(f"{name} must be a table, [{name}], not {table!r:.200}", name)
    return table


def _description(text: object) -> str:
    if type(text) is not str or not text.isprintable() or len(text) > MAX_DESCRIPTION:
        raise ValueError(f"write one line of at most {MAX_DESCRIPTION} characters, not {text!r:.80}")
    return text


def _reference(name: object) -> str:
    if type(name) is not str or not name or not name.isprintable():
        raise ValueError(f"write one profile's name or path, not {name!r:.200}")
    return name


def _limits(source: Source, table: Mapping[str, object]) -> Limits:
    values: dict[str, float | int | None] = {}
    for key, raw in table.items():
        name = _LIMITS[key]
        try:
            value = _quantity(name, raw)
            values[name] = value if value or key in _ZERO_COUNTS else None
            Limits(**{name: values[name]})  # type: ignore[arg-type]  # the name is a field's
        except (ValueError, ConfigError) as error:
            raise source.error(f"[limits] {key} = {raw!r:.200}: {error}", "limits", key) from error
    return Limits(**values)  # type: ignore[arg-type]  # the names are the fields'


def _quantity(name: str, raw: object) -> float | int:
    if not name.endswith(("_seconds", "_bytes")):
        if type(raw) is not int:
            raise ValueError("write a whole number, such as 5")
        return raw
    units = _SECONDS if name.endswith("_seconds") else _BYTES
    found = _AMOUNT.fullmatch(raw) if isinstance(raw, str) else None
    if found is None or found[2] not in units:
        raise ValueError(f"write {' or '.join(repr('5' + unit) for unit in units)}")
    amount = Decimal(found[1]) * units[found[2]]
    if units is _SECONDS:
        return float(amount)
    if 0 < amount < 1:
        raise ValueError("that is less than one byte")  # and no 0, which would be no bound
    return int(amount)


def _line(text: str, path: tuple[str, ...]) -> int:
    """The line on which the statement begins that brings in the key; 1 if none does.

    Every comment, header and statement that is complete is TOML by itself, so the lines up to it are: the
    search is for the shortest such beginning that has the key, whether written as a table, dotted, quoted
    or inline.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    if not _has(text, path):
        return 1
    low, high = 0, len(lines)  # the beginning of `low` lines lacks it; the first one from `high` on has it
    while high - low > 1:
        middle = end = (low + high) // 2
        while (has := _has("\n".join(lines[:end]), path)) is None:
            end += 1
        low, high = (low, middle) if has else (end, high)
    return low + 1


def _has(text: str, path: tuple[str, ...]) -> bool | None:
    """Whether the text has the key; None if it is no TOML, for a statement is cut in two."""
    try:
        found: object = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    for key in path:
        if not isinstance(found, dict) or key not in found:
            return False
        found = found[key]
    return True
