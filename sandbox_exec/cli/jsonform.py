"""Values and outcomes as JSON. What JSON cannot express is an object whose only key starts with "$".

===========================  ==========================================================
value                        form
===========================  ==========================================================
list, tuple                  array
dict with keys of str        object
any other dict               {"$dict": [[key, value], ...]}
set, frozenset               {"$set": [...]}, {"$frozenset": [...]}, in a stable order
bytes                        {"$bytes": base64}
NaN and the infinities       {"$float": "nan" | "inf" | "-inf"}
int beyond 4,300 digits      {"$int": hexadecimal}
Decimal, UUID, Path          {"$decimal": text}, {"$uuid": text}, {"$path": text}
date, time, datetime         {"$date": text} and so on, ISO 8601; of a zone its offset
timedelta                    {"$timedelta": [days, seconds, microseconds]}
===========================  ==========================================================

A dict whose only key starts with "$" takes the form of "any other dict": no form is mistaken for another.
"""

from __future__ import annotations

import datetime as dt
import json
from base64 import b64encode
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox_exec import Outcome

_PLAIN_INT_BITS: Final = 14_000  # Python refuses to print longer ones in decimal: quadratic time


def value_text(value: object) -> str:
    """One line of JSON, ASCII only: no character of it means anything to a terminal."""
    return json.dumps(jsonable(value))


def outcome_text(outcome: Outcome) -> str:
    """The whole outcome as one line of JSON."""
    record = {name: getattr(outcome, name) for name in outcome.__slots__}
    for name in ("value", "partial"):
        record[name] = jsonable(record[name])
    for name in ("stdout", "stderr"):
        output = record[name]
        record[name] = {"text": output.text, **{k: jsonable(v) for k, v in asdict(output).items()}}
    for name in ("exit", "usage"):
        record[name] = asdict(record[name])
    record["error"] = None if outcome.error is None else asdict(outcome.error)
    return json.dumps(record)


def jsonable(value: object) -> object:
    """The value in terms of what JSON has.

    Raises:
        KeyError: it is of a type that does not travel up.
    """
    return _FORMS[type(value)](value)


def _same(value: object) -> object:
    return value


def _int(value: int) -> object:
    return value if value.bit_length() < _PLAIN_INT_BITS else {"$int": hex(value)}


def _float(value: float) -> object:
    return value if value - value == 0 else {"$float": repr(value)}


def _array(value: list[object] | tuple[object, ...]) -> object:
    return [jsonable(item) for item in value]


def _object(value: dict[object, object]) -> object:
    names = [key for key in value if isinstance(key, str)]
    like_ours = len(value) == 1 and names[:1] and names[0].startswith("$")
    if len(names) == len(value) and not like_ours:
        return {name: jsonable(value[name]) for name in names}
    return {"$dict": [[jsonable(key), jsonable(item)] for key, item in value.items()]}


def _members(value: set[object] | frozenset[object]) -> object:
    return {f"${type(value).__name__}": sorted((jsonable(item) for item in value), key=json.dumps)}


def _text(value: object) -> object:
    return {f"${type(value).__name__.lower()}": str(value)}


def _moment(value: dt.date | dt.time) -> object:
    return {f"${type(value).__name__}": value.isoformat()}


def _bytes(value: bytes) -> object:
    return {"$bytes": b64encode(value).decode("ascii")}


def _span(value: dt.timedelta) -> object:
    return {"$timedelta": [value.days, value.seconds, value.microseconds]}


def _path(value: Path) -> object:
    return {"$path": str(value)}


_FORMS: Final[dict[type, Callable[[Any], object]]] = {
    type(None): _same,
    bool: _same,
    str: _same,
    int: _int,
    float: _float,
    list: _array,
    tuple: _array,
    dict: _object,
    set: _members,
    frozenset: _members,
    bytes: _bytes,
    Decimal: _text,
    UUID: _text,
    dt.date: _moment,
    dt.time: _moment,
    dt.datetime: _moment,
    dt.timedelta: _span,
    type(Path()): _path,
}
