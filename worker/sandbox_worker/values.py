"""Turns a value of the child into the value text of `protocol`: exactly, or not at all.

The types beyond the built-in ones are looked up in ``sys.modules`` instead of imported: a value of
type Decimal exists only where decimal is loaded, and ``import datetime, decimal, enum, ...`` would
cost each child more than most results do. ``_json`` and ``binascii`` wait until a string or bytes
need them.

The checks here are for speed and for a refusal that names the place; only the host's count
(``engine/values.py``). Hence everything that the host refuses is refused here too.
"""

import sys

from sandbox_worker import protocol
from sandbox_worker.protocol import Tag

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would be 15 ms
    from collections.abc import Callable, Collection, Iterator, Sized
    from typing import Any

    Entries = Iterator[tuple[object, object]]


class TooLarge(Exception):
    """The value does not fit.

    Attributes:
        size_text: The least that it measures, with its unit: "at least 2000000 bytes".
        limit: What is allowed, in the same unit.
    """

    def __init__(self, size_text: str, limit: int) -> None:
        super().__init__(f"the value measures {size_text}, the limit is {limit}")
        self.size_text = size_text
        self.limit = limit


class NotSerializable(Exception):
    """Something in the value would not be restored exactly.

    Attributes:
        path: Where it stands, such as "[3].x"; "{key}" is a key of a dict or an item of a set.
        reason: What is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


def encode(value: object, max_bytes: int, max_items: int) -> bytes:
    """Encodes a value.

    Args:
        value: Any of the types that travel up; dataclass instances become dicts, Enum members their values.
        max_bytes: Bound of the text's bytes without `protocol.TOKEN_OVERHEAD` a token.
        max_items: Bound of the number of tokens.

    Raises:
        TooLarge: Found before large copies are made.
        NotSerializable: With the path of the first item that cannot travel.
    """
    encoder = _Encoder(max_bytes, max_items)
    try:
        encoder.write(value)
    except NotSerializable as refusal:
        refusal.path = refusal.path or "the top"
        raise
    return bytes(encoder.text)


def plain(data: "dict[str, Any]") -> str | None:
    """The JSON of a small dict whose values stand for themselves; None for any other."""
    if len(data) > protocol.MAX_PLAIN_PAIRS:
        return None
    pairs = []
    for name, value in data.items():
        kind = type(value)
        if type(name) is not str:
            return None
        if kind is str:
            token = _quote(value)
        elif (kind is int and -(1 << 63) <= value < 1 << 63) or (kind is float and value - value == 0):
            token = repr(value)
        elif value is None or kind is bool:
            token = "null" if value is None else "true" if value else "false"
        else:
            return None
        pairs.append(f"{_quote(name)}:{token}")
    made = f"{{{','.join(pairs)}}}"
    try:
        size = len(made.encode())
    except UnicodeEncodeError:
        return None
    return made if size <= protocol.PLAIN_BYTES else None


def quote(text: str, most: int) -> str:
    """Makes a JSON string of at most so many characters for a header line.

    Lone surrogates, which JSON cannot carry, become escapes of six characters.
    """
    return _quote(text[:most].encode("utf-8", "backslashreplace").decode()[:most])


def _quote(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    from _json import encode_basestring

    return encode_basestring(text)


class _Encoder:
    __slots__ = ("_max_bytes", "_max_items", "_open", "_promised", "_room", "_work", "text")

    def __init__(self, max_bytes: int, max_items: int) -> None:
        self.text = bytearray()
        self._max_bytes = self._room = max_bytes
        self._max_items = max_items
        self._promised = 1
        self._open: set[int] = set()
        self._work = 0

    def write(self, value: object) -> None:
        kind = type(value)
        writer = _WRITERS.get(kind) or _rare_writer(kind)
        writer(self, value)

    def put(self, token: bytes) -> None:
        self._room -= len(token) + 1 - protocol.TOKEN_OVERHEAD
        self._reserve(0)
        self.text += token
        self.text += b"\n"

    def _reserve(self, size: int) -> None:
        if size > self._room:
            raise TooLarge(f"at least {self._max_bytes - self._room + size} bytes", self._max_bytes)

    def tagged(self, tag: str, payload: str) -> None:
        self.put(f'["{tag}","{payload}"]'.encode("ascii"))

    def base64(self, tag: str, data: bytes) -> None:
        self._reserve(len(data) // 3 * 4)
        from binascii import b2a_base64

        self.tagged(tag, b2a_base64(data, newline=False).decode("ascii"))

    def integer(self, value: int) -> None:
        if -(1 << 63) <= value < 1 << 63:
            self.put(b"%d" % value)
        elif value.bit_length() > protocol.MAX_INT_BITS and abs(value) >= 10**protocol.MAX_INT_DIGITS:
            raise NotSerializable("", f"an int of more than {protocol.MAX_INT_DIGITS} digits")
        else:
            self.tagged(Tag.INT, f"{value:x}")

    def floating(self, value: float) -> None:
        if value - value == 0:
            self.put(b"%r" % value)
        else:
            self.tagged(Tag.FLOAT, repr(value))

    def string(self, value: str) -> None:
        self._reserve(len(value))
        try:
            token = _quote(value).encode()
        except UnicodeEncodeError:
            self.base64(Tag.STR, value.encode("utf-8", "surrogatepass"))
        else:
            self.put(token)

    def decimal(self, value: object) -> None:
        text = str(value).replace("e", "E")  # the child's decimal context may ask for the small one
        if len(text) > protocol.MAX_INT_DIGITS:
            raise NotSerializable("", f"a Decimal of more than {protocol.MAX_INT_DIGITS} characters")
        self.tagged(Tag.DECIMAL, text)

    def path(self, value: object) -> None:
        os = sys.modules["os"]
        try:
            raw = os.fsencode(value)
        except UnicodeEncodeError:
            raw = b"\0"
        if b"\0" in raw or os.fsdecode(raw) != str(value):
            raise NotSerializable("", "a path that no file can have")
        self.base64(Tag.PATH, raw)

    def moment(self, tag: str, value: "Any") -> None:  # noqa: ANN401 a type that is not imported
        naive = value.replace(tzinfo=None).isoformat()
        self.put(f'["{tag}","{naive}",{value.fold},{_quote(_zone(value.tzinfo))}]'.encode())

    def timedelta(self, value: "Any") -> None:  # noqa: ANN401 "
        self.tagged(Tag.TIMEDELTA, f"{value.days},{value.seconds},{value.microseconds}")

    def dataclass(self, value: object) -> None:
        fields = sys.modules["dataclasses"].fields(value)
        self.container(Tag.DICT, value, fields, _of_fields(value, fields), width=2)

    def container(self, tag: str, value: object, sized: "Sized", entries: "Entries", width: int = 1) -> None:
        """Writes a container, its size first: `entries` copies the items, which may be too many."""
        count = len(sized)
        if id(value) in self._open:
            raise NotSerializable("", "cycle")
        if len(self._open) == protocol.MAX_DEPTH:
            raise NotSerializable("", f"nested more than {protocol.MAX_DEPTH} deep")
        self._promised += count * width
        if self._promised > self._max_items:
            raise TooLarge(f"at least {self._promised} items", self._max_items)
        self._open.add(id(value))
        self.put(b'["%b",%d]' % (tag.encode(), count))
        place: object = ""
        try:
            for place, item in entries:  # noqa: B007 the handler reads it
                self.write(item)
            place = ""
            if len(sized) != count:
                raise NotSerializable("", "changed while it was read")
            if isinstance(value, (set, frozenset, dict)):
                self._check_keys(value)
        except NotSerializable as refusal:
            refusal.path = _step(place) + refusal.path
            raise
        self._open.remove(id(value))

    def _check_keys(self, keys: "Collection[object]") -> None:
        if all(type(key) is str for key in keys):
            return
        plain = [_plain_key(key) for key in keys]
        try:
            self._work += protocol.equal_hash_work(plain)
            distinct = len(set(plain))
        except TypeError:
            raise NotSerializable("{key}", "not hashable once it is converted") from None
        if self._work > protocol.most_equal_work(self._max_items):
            raise NotSerializable("{key}", "too many with equal or freely chosen hash values")
        if distinct != len(keys):
            raise NotSerializable("{key}", "two are equal once they are converted")


# What a container holds, each item with its place: a step of the path, an index or the tuple of a key.


def _of_sequence(value: "Collection[object]") -> "Entries":
    yield from enumerate(tuple(value))


def _of_set(value: "Collection[object]") -> "Entries":
    for item in tuple(value):
        yield "{key}", item


def _of_dict(value: dict[object, object]) -> "Entries":
    for key, item in tuple(value.items()):
        yield "{key}", key
        yield (key,), item


def _of_fields(value: object, fields: "Any") -> "Entries":  # noqa: ANN401 "
    for name in [field.name for field in fields]:
        yield f".{name}", name
        try:
            item = getattr(value, name)
        except AttributeError:
            raise NotSerializable("", "a field that is not set") from None
        yield f".{name}", item


def _step(place: object) -> str:
    if type(place) is str:
        return place
    key = place[0] if type(place) is tuple else place
    if type(key) is str:
        return f".{key}" if key.isidentifier() and key.isascii() and len(key) <= 40 else f"[{key[:40]!a}]"
    return f"[{key}]" if type(key) is int and key.bit_length() < 100 else "[...]"


def _plain_key(key: object) -> object:
    """Makes the key that the host will see: with the conversions, equal ones may meet."""
    kind = type(key)
    if kind in {tuple, frozenset}:
        return kind(map(_plain_key, key))  # type: ignore[call-overload]
    enum = sys.modules.get("enum")
    if enum is not None and issubclass(kind, enum.Enum):
        return _plain_key(key.value)  # type: ignore[attr-defined]
    return {} if hasattr(kind, "__dataclass_fields__") else key


def _zone(zone: "Any") -> str:  # noqa: ANN401 "
    if zone is None:
        return ""
    kind, timezone = type(zone), sys.modules["datetime"].timezone
    if zone is timezone.utc:
        return "utc"
    if kind is timezone and len(zone.__getinitargs__()) == 1:  # without a name of its own
        offset = zone.utcoffset(None)
        return f"{(offset.days * 86_400 + offset.seconds) * 1_000_000 + offset.microseconds:+d}"
    if kind is getattr(sys.modules.get("zoneinfo"), "ZoneInfo", None) and _is_restorable(zone):
        return f"={zone.key}"
    raise NotSerializable("", "a time zone other than UTC, an offset without a name or a ZoneInfo by key")


def _is_restorable(zone: "Any") -> bool:  # noqa: ANN401 "
    try:
        zone.__reduce__()  # refuses a zone made of a file, which may say anything under any key
    except Exception:  # noqa: BLE001 pickle's own class; pickle may not be loaded
        return False
    return not zone.key.startswith(("posix", "right/"))  # not among the host's available_timezones()


def _rare_writer(kind: type) -> "Callable[[_Encoder, Any], None]":
    enum = sys.modules.get("enum")
    if enum is not None and issubclass(kind, enum.Enum):
        return lambda encoder, value: encoder.write(value.value)
    module, writer = _LOADED.get(kind.__name__, ("", None))
    if writer is not None and getattr(sys.modules.get(module), kind.__name__, None) is kind:
        return writer
    name = f"{kind.__module__}.{kind.__qualname__}"[: protocol.MAX_NAME]
    for base in (int, float, str, bytes, list, tuple, set, frozenset, dict):
        if issubclass(kind, base):
            raise NotSerializable("", f"{name}, a subclass of {base.__name__}")
    if hasattr(kind, "__dataclass_fields__"):
        return _Encoder.dataclass
    raise NotSerializable("", f"objects of type {name} cannot travel")


_WRITERS: "dict[type, Callable[[_Encoder, Any], None]]" = {
    type(None): lambda encoder, _: encoder.put(b"null"),
    bool: lambda encoder, value: encoder.put(b"true" if value else b"false"),
    int: _Encoder.integer,
    float: _Encoder.floating,
    str: _Encoder.string,
    bytes: lambda encoder, value: encoder.base64(Tag.BYTES, value),
    list: lambda encoder, value: encoder.container(Tag.LIST, value, value, _of_sequence(value)),
    tuple: lambda encoder, value: encoder.container(Tag.TUPLE, value, value, _of_sequence(value)),
    set: lambda encoder, value: encoder.container(Tag.SET, value, value, _of_set(value)),
    frozenset: lambda encoder, value: encoder.container(Tag.FROZENSET, value, value, _of_set(value)),
    dict: lambda encoder, value: encoder.container(Tag.DICT, value, value, _of_dict(value), width=2),
}

# By name, with the module that must have loaded the type.
_LOADED: "dict[str, tuple[str, Callable[[_Encoder, Any], None]]]" = {
    "Decimal": ("decimal", _Encoder.decimal),
    "UUID": ("uuid", lambda encoder, value: encoder.tagged(Tag.UUID, value.hex)),
    "PosixPath": ("pathlib", _Encoder.path),
    "date": ("datetime", lambda encoder, value: encoder.tagged(Tag.DATE, value.isoformat())),
    "time": ("datetime", lambda encoder, value: encoder.moment(Tag.TIME, value)),
    "datetime": ("datetime", lambda encoder, value: encoder.moment(Tag.DATETIME, value)),
    "timedelta": ("datetime", _Encoder.timedelta),
}
