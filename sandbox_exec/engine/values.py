"""Restores a value from the value text of `protocol`, which a child wrote: exactly, or not at all.

``pickle`` runs what it reads; nested JSON recurses and makes objects before anybody knows how many
(4 MB of ``[[],[],...`` took 364 ms and 92 MB). A value text is a flat pre-order list, so that

* the number of tokens is the number of newlines, counted before the first token is decoded;
* tokens are read one line at a time and put together with a stack of at most `MAX_DEPTH`;
* a container must have been promised no more items than there are tokens left.

What remains is linear in the text: at worst about 10 µs a token, for Decimals and paths as keys. The
exception would be the comparison of keys that share a hash value, hence `equal_hash_work`.

Every payload is written anew from what was made of it and must come out the same: one rule instead of
a grammar for each type, whose parsers accept underscores, spaces, other alphabets and short forms.
"""

import binascii
import datetime as dt
import os
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from sandbox_worker import protocol
from sandbox_worker.protocol import Tag

if TYPE_CHECKING:
    from pathlib import Path

_Made = TypeVar("_Made")
Value: TypeAlias = object
"""One of the types that travel up; the caller looks at it with isinstance."""

_INT64: Final = range(-(1 << 63), 1 << 63)
_ZONE_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-/")


class ValueRefused(Exception):
    """A text that no encoder writes: the child broke the protocol.

    Attributes:
        reason: Short and printable, without anything of the text but the number of the token.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Tagged(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A token that is an array. Where `fold` and `zone` are absent, they hold what no text can say."""

    tag: str
    payload: str | Annotated[int, msgspec.Meta(ge=0)]
    fold: Annotated[int, msgspec.Meta(ge=0, le=1)] = -1
    zone: str | None = None


# The bounds keep msgspec from making ints of thousands of digits, and them from becoming floats.
_Token: TypeAlias = (
    bool | Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | float | str | _Tagged | None
)
_EARLY = 2 * protocol.MAX_CHOSEN_HASHES + 2  # items after which a set or dict is looked at for the first time
_LIST, _TUPLE, _DICT, _SET = Tag.LIST, Tag.TUPLE, Tag.DICT, Tag.SET
_read = msgspec.json.Decoder(_Token).decode


def decode(text: bytes | bytearray | memoryview, *, max_bytes: int, max_items: int) -> Value:
    """Decodes a value text.

    Args:
        text: What the child sent, complete.
        max_bytes: Bound of its bytes without `protocol.TOKEN_OVERHEAD` a token.
        max_items: Bound of the number of tokens.

    Raises:
        ValueRefused: It is malformed, not canonical or beyond a bound.
    """
    raw = text if type(text) is bytes else bytes(text)
    total = raw.count(b"\n")
    if total > max_items:
        raise ValueRefused(f"{total} tokens, allowed are {max_items}")
    if len(raw) - total * protocol.TOKEN_OVERHEAD > max_bytes:
        raise ValueRefused(f"more than {max_bytes} bytes")
    if not raw.endswith(b"\n"):
        raise ValueRefused(f"the text ends within token {total + 1}")
    return _Builder(total, protocol.most_equal_work(max_items)).build(raw)


class _Builder:
    def __init__(self, total: int, most_work: int) -> None:
        self._total, self._most_work = total, most_work
        self._promised = 1
        self._work = 0

    def build(self, raw: bytes) -> Value:
        number = 0
        try:
            # The outermost list awaits the one value.
            tag, missing = _LIST, 1
            items: list[Value] = []
            outer: list[tuple[str, list[Value], int]] = []
            # A file of lines is three times as fast as slices. One token alone needs no copy of a line.
            lines = BytesIO(raw) if self._total > 1 else (raw,)
            for number, line in enumerate(lines, 1):  # noqa: B007 the handlers read it
                token = _read(line)
                if type(token) is _Tagged and token.tag in _WIDTHS:
                    if len(outer) == protocol.MAX_DEPTH:
                        raise ValueRefused("nested too deep")
                    outer.append((tag, items, missing))
                    tag, items, missing = token.tag, [], self._promise(token)
                else:
                    items.append(_restore(token) if type(token) is _Tagged else token)
                    missing -= 1
                    if len(items) == _EARLY and tag not in (_LIST, _TUPLE):
                        self._check_hashes(items[::2] if tag == _DICT else items)
                while not missing and outer:
                    value = self._close(tag, items)
                    tag, items, missing = outer.pop()
                    items.append(value)
                    missing -= 1
                if not missing:
                    break
        except ValueRefused as refusal:
            raise ValueRefused(f"token {number}: {refusal.reason}") from None
        except msgspec.MsgspecError:
            raise ValueRefused(f"token {number}: malformed") from None
        if number < self._total:
            raise ValueRefused(f"token {number + 1}: the value was complete")
        return items[0]

    def _promise(self, token: _Tagged) -> int:
        count = token.payload
        if type(count) is not int or token.fold != -1:
            raise ValueRefused("not a count")
        items = count * _WIDTHS[token.tag]
        self._promised += items
        if self._promised > self._total:
            raise ValueRefused("more items than tokens are left")
        return items

    def _close(self, tag: str, items: list[Value]) -> Value:
        if tag == _LIST:
            return items
        if tag == _TUPLE:
            return tuple(items)
        keys = items[::2] if tag == _DICT else items
        for key in keys:
            if type(key) is not str:  # whose hash is salted
                self._check_hashes(keys)
                break
        made: dict[Value, Value] | set[Value] | frozenset[Value]
        if tag == _DICT:
            made = dict(zip(keys, items[1::2], strict=True))
        else:
            made = set(items) if tag == _SET else frozenset(items)
        if len(made) != len(keys):
            raise ValueRefused("two equal keys")
        return made

    def _check_hashes(self, keys: list[Value]) -> None:
        try:
            self._work += protocol.equal_hash_work(keys)
        except TypeError:  # a list, set or dict; a signaling NaN
            raise ValueRefused("a key that is not hashable") from None
        if self._work > self._most_work:
            raise ValueRefused("too many keys with equal or freely chosen hash values")


def _restore(token: _Tagged) -> Value:
    payload, zone = token.payload, token.zone
    restorer, moment = _RESTORERS.get(token.tag), _MOMENTS.get(token.tag)
    try:
        if isinstance(payload, str):
            if restorer is not None and zone is None and token.fold == -1:
                return restorer(payload)
            if moment is not None and zone is not None:
                return moment(payload).replace(fold=token.fold, tzinfo=_zone(zone))
    except (ValueError, ArithmeticError, KeyError):  # of the parsers; Decimal's and ZoneInfo's own
        raise ValueRefused("not canonical") from None
    raise ValueRefused("malformed")


def _integer(payload: str) -> int:
    if len(payload) > protocol.MAX_INT_BITS // 4 + 3:
        raise ValueError
    made = int(payload, 16)
    if made in _INT64 or (made.bit_length() > protocol.MAX_INT_BITS and abs(made) >= _first_too_long()):
        raise ValueError
    return _as_written(made, f"{made:x}", payload)


@cache
def _first_too_long() -> int:
    made: int = 10**protocol.MAX_INT_DIGITS
    return made


def _floating(payload: str) -> float:
    made = float(payload)
    if made - made == 0:
        raise ValueError
    return _as_written(made, repr(made), payload)


def _string(payload: str) -> str:
    made = _bytes(payload).decode("utf-8", "surrogatepass")
    try:
        made.encode()
    except UnicodeEncodeError:
        return made
    raise ValueError


def _bytes(payload: str) -> bytes:
    made = binascii.a2b_base64(payload, strict_mode=True)
    # What strict mode leaves open are the bits of the last character that stand for nothing.
    last = made[-(len(made) % 3 or 3) :]
    return _as_written(made, binascii.b2a_base64(last, newline=False).decode(), payload[-4:])


def _decimal(payload: str) -> Decimal:
    if len(payload) > protocol.MAX_INT_DIGITS:
        raise ValueError
    made = Decimal(payload)
    return _as_written(made, str(made).replace("e", "E"), payload)  # the host's context may ask for "e"


def _uuid(payload: str) -> UUID:
    made = UUID(hex=payload)
    return _as_written(made, made.hex, payload)


def _path(payload: str) -> "Path":
    from pathlib import Path

    raw = _bytes(payload)
    text = os.fsdecode(raw)
    # By its text, not by the path made of it: Python 3.12 interns the parts of a path that is looked
    # into, and never frees them.
    parts = (text[1:] if text.startswith("//") else text).split("/")
    inner = parts[1:] if not parts[0] else parts
    plain = bool(text) and "" not in inner and "." not in inner
    if b"\0" in raw or not (plain or text in (".", "/")):
        raise ValueError
    return Path(text)


def _date(payload: str) -> dt.date:
    made = dt.date.fromisoformat(payload)
    return _as_written(made, made.isoformat(), payload)


def _time(payload: str) -> dt.time:
    made = dt.time.fromisoformat(payload).replace(tzinfo=None)
    return _as_written(made, made.isoformat(), payload)


def _datetime(payload: str) -> dt.datetime:
    made = dt.datetime.fromisoformat(payload).replace(tzinfo=None)
    return _as_written(made, made.isoformat(), payload)


def _timedelta(payload: str) -> dt.timedelta:
    days, seconds, microseconds = map(_small, payload.split(",", 3))
    made = dt.timedelta(days, seconds, microseconds)
    return _as_written(made, f"{made.days},{made.seconds},{made.microseconds}", payload)


def _small(payload: str) -> int:
    if len(payload) > len("-999999999999"):
        raise ValueError
    return int(payload)


def _zone(payload: str) -> dt.tzinfo | None:
    if not payload:
        return None
    if payload == "utc":
        return dt.UTC
    if payload.startswith("="):
        return _zone_by_key(payload[1:])
    microseconds = _small(payload)
    made = dt.timezone(dt.timedelta(microseconds=microseconds))
    if made is dt.UTC:
        raise ValueError
    return _as_written(made, f"{microseconds:+d}", payload)


@cache  # ZoneInfo's own forgets all but eight, and reads the file again: 0.05 ms
def _zone_by_key(key: str) -> dt.tzinfo:
    # ZoneInfo opens a file by this name. Its own check against "../.." is not a boundary of ours.
    if not _ZONE_CHARACTERS.issuperset(key) or key not in _known_zones():
        raise ValueError
    from zoneinfo import ZoneInfo

    return ZoneInfo(key)


@cache
def _known_zones() -> set[str]:
    from zoneinfo import available_timezones  # reads the whole database, 90 ms

    return available_timezones()


def _as_written(made: _Made, written: str, payload: str) -> _Made:
    if written != payload:
        raise ValueError
    return made


_WIDTHS: Final = {Tag.LIST: 1, Tag.TUPLE: 1, Tag.SET: 1, Tag.FROZENSET: 1, Tag.DICT: 2}

_RESTORERS: Final[dict[str, Callable[[str], Value]]] = {
    Tag.INT: _integer,
    Tag.FLOAT: _floating,
    Tag.STR: _string,
    Tag.BYTES: _bytes,
    Tag.DECIMAL: _decimal,
    Tag.UUID: _uuid,
    Tag.PATH: _path,
    Tag.DATE: _date,
    Tag.TIMEDELTA: _timedelta,
}

_MOMENTS: Final[dict[str, Callable[[str], dt.time | dt.datetime]]] = {
    Tag.TIME: _time,
    Tag.DATETIME: _datetime,
}
