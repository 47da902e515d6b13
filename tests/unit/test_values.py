"""Values on their way up: restored exactly or refused, whatever the bytes."""

import base64
import contextlib
import dataclasses
import datetime as dt
import enum
import json
import math
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
import zoneinfo
from collections import OrderedDict
from decimal import Decimal, localcontext
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandbox_exec.engine.values import ValueRefused, decode
from sandbox_worker import protocol
from sandbox_worker.values import NotSerializable, TooLarge, encode, quote

BYTES, ITEMS = 4 << 20, 1 << 18
MERSENNE = (1 << 61) - 1  # ints have their hash modulo this


def up(value: object) -> object:
    return decode(encode(value, BYTES, ITEMS), max_bytes=BYTES, max_items=ITEMS)


def restore(text: bytes) -> object:
    return decode(text, max_bytes=BYTES, max_items=ITEMS)


def exact(value: object) -> object:
    """Something that is equal only for values that cannot be told apart: types, signs, folds, zones."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, [exact(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(exact(item)) for item in value)
    if kind is dict:
        return kind, [(exact(key), exact(item)) for key, item in value.items()]
    if kind is float:
        return kind, "nan" if math.isnan(value) else struct.pack("d", value)
    if kind in (dt.datetime, dt.time):
        return kind, value.replace(tzinfo=None).isoformat(), value.fold, repr(value.tzinfo)
    if kind is Decimal:
        return kind, value.as_tuple()
    if kind is int:
        return kind, hex(value)
    return kind, value


fixed_offsets = st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)))
zones = (
    st.none()
    | st.just(dt.UTC)
    | fixed_offsets
    | st.sampled_from(
        [zoneinfo.ZoneInfo("Europe/Berlin"), zoneinfo.ZoneInfo("America/Argentina/Buenos_Aires")]
    )
)
moments = st.datetimes() | st.times()
texts = st.text(st.characters(codec=None, exclude_categories=()))
paths = (
    st.binary(max_size=20)
    .filter(lambda raw: b"\0" not in raw)
    .map(lambda raw: Path(raw.decode("utf-8", "surrogateescape")))
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 4000), 1 << 4000),
    st.floats(),
    texts,
    st.binary(),
    st.decimals(),
    st.uuids(),
    paths,
    st.dates(),
    st.timedeltas(),
    st.builds(
        lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold), moments, zones, st.integers(0, 1)
    ),
)
keys = st.recursive(
    scalars.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan())),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    scalars | keys | st.sets(keys, max_size=4) | st.frozensets(keys, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=400, deadline=None)
@example(
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        10**5000,
        -(10**5000),
        2**63,
        -(2**63),
        2**63 - 1,
        1e308,
        5e-324,
        1e16,
    ]
)
@example(
    ["\ud800", "\udc80x", "\ud83d\ude00", "\N{GRINNING FACE}", '"\\/\b\f\n\r\t\0\x7f\x85\u2028', "é" * 9]
)
@example(
    [
        Decimal("1E+999999999"),
        Decimal("-0"),
        Decimal("NaN12"),
        Decimal("-sNaN"),
        Decimal("1.10"),
        Decimal("1E-7"),
    ]
)
@example(
    {b"": (), frozenset(): [], (): {}, None: set(), math.nan: 1, -1: 0, -2: 0, 0.5: "", True: b"\n\xff\x00"}
)
@example({(x, y, z) for x in (-1, -2) for y in (-1, -2) for z in (-1, -2)})
@example([*(dt.timedelta.min, dt.timedelta.max, dt.timedelta(microseconds=-1)), dt.date.min, dt.date.max])
@example({dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=23, microseconds=1)))})
@example(
    {dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=23))), dt.time(1, tzinfo=dt.UTC, fold=1)}
)
@example([Path(), Path("/"), Path("//a"), Path("a/../b"), Path("\udcff")])
def test_every_value_is_restored_exactly(value):
    assert exact(up(value)) == exact(value)


def test_the_fold_of_an_ambiguous_hour_survives():
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    late = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=berlin)
    back = up(late)
    assert back.utcoffset() == dt.timedelta(hours=1)
    assert back.tzinfo is berlin


class Colour(enum.Enum):
    RED = 1
    PAIR = (1, "x")
    ALIKE = 2.0


class Level(enum.IntEnum):
    LOW = 3


class Flags(enum.Flag):
    A = 1
    B = 2


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Point:
    y: object
    x: object = 0
    kind: "dataclasses.InitVar[int]" = 0
    later: object = dataclasses.field(default=1, init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    b: object
    a: object = None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Colour.PAIR, (1, "x")),
        (Level.LOW, 3),
        (Flags.A | Flags.B, 3),
        (Word.YES, "yes"),
        ({Colour.RED: {Level.LOW}, (Colour.PAIR,): 0}, {1: {3}, ((1, "x"),): 0}),
        (Point(Slotted([1]), x=Colour.RED), {"y": {"b": [1], "a": None}, "x": 1, "later": 1}),
    ],
)
def test_documented_conversions(value, expected):
    assert exact(up(value)) == exact(expected)
    assert list(up(Point(1))) == ["y", "x", "later"]


class Pair(NamedTuple):
    a: int
    b: int


class Text(str):
    __slots__ = ()


class Shrinking(enum.Enum):
    MEMBER = 1

    @property
    def value(self):
        mutated.clear()
        return 1


mutated: list[object] = []
cycle: list[object] = [1]
cycle.append({"again": cycle})
unset = Slotted.__new__(Slotted)
named_zone = dt.timezone(dt.timedelta(hours=1), "CET")


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


REFUSED = [
    (object(), "the top", "objects of type builtins.object cannot travel"),
    ([0, 1, 2, Slotted(1, a=print)], "[3].a", "builtin_function_or_method"),
    ([cycle], "[0][1].again", "cycle"),
    ({"k": Pair(1, 2)}, ".k", "a subclass of tuple"),
    ((OrderedDict(),), "[0]", "a subclass of dict"),
    ({7: Text("x")}, "[7]", "a subclass of str"),
    ({Text("x"): 7}, "{key}", "a subclass of str"),
    ({10**5000: {(0, print)}}, "[...]{key}[1]", "cannot travel"),
    ({1: 0, Colour.RED: 0}, "{key}", "two are equal once they are converted"),
    ({(2,), (Colour.ALIKE,)}, "{key}", "two are equal once they are converted"),
    ({Slotted(1): 0}, "{key}", "not hashable once it is converted"),
    ([10**protocol.MAX_INT_DIGITS], "[0]", "an int of more than 100000 digits"),
    ([-(10**protocol.MAX_INT_DIGITS)], "[0]", "an int of more than 100000 digits"),
    (1 << (1 << 27), "the top", "an int of more than 100000 digits"),
    (Decimal("1" * 100_001), "the top", "a Decimal of more than 100000 characters"),
    (unset, ".b", "a field that is not set"),
    (dt.time(1, tzinfo=named_zone), "the top", "a time zone other than"),
    ([PurePosixPath("a")], "[0]", "PurePosixPath cannot travel"),
    ([Path("a\0b")], "[0]", "a path that no file can have"),
    ([Path("\ud800")], "[0]", "a path that no file can have"),
    ([Path("\udcc3\udca9")], "[0]", "a path that no file can have"),
    ({MERSENNE * n for n in range(65)}, "{key}", "too many with equal or freely chosen hash values"),
    (nested(101), "[0]" * 100, "nested more than 100 deep"),
    (bytearray(b"x"), "the top", "bytearray"),
    (1j, "the top", "complex"),
    (len, "the top", "builtin_function_or_method"),
    (int, "the top", "builtins.type"),
    (Point, "the top", "builtins.type"),
]


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_restored_is_refused_with_its_path(value, path, reason):
    with pytest.raises(NotSerializable) as caught:
        encode(value, BYTES, ITEMS)
    assert caught.value.path == path
    assert reason in caught.value.reason


def test_a_zone_made_of_a_file_is_refused():
    name = next(Path(root, "UTC") for root in zoneinfo.TZPATH if Path(root, "UTC").exists())
    with name.open("rb") as file:
        zone = zoneinfo.ZoneInfo.from_file(file, key="Europe/Berlin")
    with pytest.raises(NotSerializable, match="a time zone other than"):
        encode(dt.datetime(2024, 1, 1, tzinfo=zone), BYTES, ITEMS)


def test_a_container_that_changes_meanwhile_is_refused():
    mutated[:] = [0, Shrinking.MEMBER, 2]
    with pytest.raises(NotSerializable, match="changed while it was read"):
        encode([mutated], BYTES, ITEMS)


def test_a_set_that_other_threads_change_is_refused_or_read_whole():
    shared: dict[object, object] = dict.fromkeys(range(100))
    stop, seen = threading.Event(), set()

    def churn() -> None:
        while not stop.is_set():
            shared[len(shared)] = None
            shared.popitem()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            try:
                seen.add(len(up(shared)))
            except NotSerializable as refusal:
                seen.add(refusal.reason)
    finally:
        stop.set()
        thread.join()
    assert seen <= {100, 101, "changed while it was read"}


def test_an_int_of_the_most_digits_passes():
    most = 10**protocol.MAX_INT_DIGITS - 1
    assert up([most, -most]) == [most, -most]


def test_depth_passes_to_its_bound():
    assert up(nested(100)) == nested(100)


def test_a_small_e_in_the_decimal_context_of_either_side_changes_nothing():
    with localcontext() as context:
        context.capitals = 0
        assert up(Decimal("1E+30")).as_tuple() == Decimal("1E+30").as_tuple()


def test_every_pair_that_shares_a_hash_passes_at_the_item_bound():
    pairs = [{-1, -2} for _ in range((ITEMS - 1) // 3)]
    assert up(pairs) == pairs


# --------------------------------------------------------------------------------------------- size


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("A" * 1000, 1000),
        ("é" * 1000, 2000),
        ("\n" * 1000, 2000),
        (b"\xff" * 999, 1332 + len('["b",]')),
        (None, 2),
        (["x", "y"], 1 + 1 + len('["l",2]') - 2),
    ],
)
def test_the_byte_bound_is_the_same_on_both_sides(value, size):
    text = encode(value, size, ITEMS)
    assert decode(text, max_bytes=size, max_items=ITEMS) == value
    with pytest.raises(TooLarge) as caught:
        encode(value, size - 1, ITEMS)
    assert caught.value.limit == size - 1
    assert caught.value.size_text.endswith(" bytes")
    with pytest.raises(ValueRefused, match=f"more than {size - 1} bytes"):
        decode(text, max_bytes=size - 1, max_items=ITEMS)


def test_the_item_bound_is_the_same_on_both_sides():
    value = [{1: 2}, 3]
    text = encode(value, BYTES, 5)
    assert decode(text, max_bytes=BYTES, max_items=5) == value
    with pytest.raises(TooLarge) as caught:
        encode(value, BYTES, 4)
    assert (caught.value.size_text, caught.value.limit) == ("at least 5 items", 4)
    with pytest.raises(ValueRefused, match="5 tokens, allowed are 4"):
        decode(text, max_bytes=BYTES, max_items=4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: "A" * 100_000_000,
        lambda: "é" * 50_000_000,
        lambda: b"A" * 100_000_000,
        lambda: [None] * 10_000_000,
        lambda: ["A" * 1000] * 200_000,
        lambda: dict.fromkeys(range(2_000_000)),
    ],
)
def test_a_value_too_large_is_refused_before_it_is_copied(make):
    value = make()
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            encode(value, 1_000_000, ITEMS)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------- hostile text


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


MALFORMED = [
    (b"", "the text ends within token 1"),
    (b"1", "the text ends within token 1"),
    (b"\n", "token 1: malformed"),
    (b"1\n2", "the text ends within token 2"),
    (b"1\n2\n", "token 2: the value was complete"),
    (b"1 2\n", "token 1: malformed"),
    (b'["l",\n1]\n', "token 1: malformed"),
    (b'["l",2]\n1\n', "token 1: more items than tokens are left"),
    (b'["l",2]\n["l",1]\n1\n', "token 2: more items than tokens are left"),
    (b'["d",1]\n1\n', "token 1: more items than tokens are left"),
    (b'["l",99999999999999999999999]\n', "token 1: more items than tokens are left"),
    (b'["l",0]\n["l",0]\n', "token 2: the value was complete"),
    (b'["t",1]\n' * 200 + b"1\n", "token 101: nested too deep"),
    (b'["l",-1]\n', "token 1: malformed"),
    (b'["l",true]\n', "token 1: malformed"),
    (b'["l","1"]\n', "token 1: not a count"),
    (b'["l",0,0,""]\n', "token 1: not a count"),
    (b'["i",5]\n', "token 1: malformed"),
    (b'["?","x"]\n', "token 1: malformed"),
    (b'["i","8000000000000000",0]\n', "token 1: malformed"),
    (b'["i","8000000000000000",0,""]\n', "token 1: malformed"),
    (b'["i"]\n', "token 1: malformed"),
    (b"[[]]\n", "token 1: malformed"),
    (b"{}\n", "token 1: malformed"),
    (b"NaN\n", "token 1: malformed"),
    (b"1e400\n", "token 1: malformed"),
    (b"9223372036854775808\n", "token 1: malformed"),
    (b"-9223372036854775809\n", "token 1: malformed"),
    (b"9" * 5000 + b"\n", "token 1: malformed"),
    (b'"\\ud800"\n', "token 1: malformed"),
    (b'"\xed\xa0\x80"\n', "token 1: malformed"),
    (b'"\xff"\n', "token 1: malformed"),
    (b'["S",2]\n1\n1.0\n', "token 3: two equal keys"),
    (b'["S",2]\n0.0\n-0.0\n', "token 3: two equal keys"),
    (b'["d",2]\n"k"\n1\n"k"\n2\n', "token 5: two equal keys"),
    (b'["S",1]\n["l",0]\n', "token 2: a key that is not hashable"),
    (b'["F",1]\n["D","sNaN"]\n', "token 2: a key that is not hashable"),
    (b'["d",1]\n["t",1]\n["d",0]\n1\n', "token 4: a key that is not hashable"),
    (b"[" * 4_000_000 + b"\n", "token 1: malformed"),
    (b'["t",0]\n' * 524_288, "524288 tokens, allowed are 262144"),
    (b"[]\n" * 1_000_000, "1000000 tokens, allowed are 262144"),
    (b'["t",0]\n' * 262_144, "token 2: the value was complete"),
]


@pytest.mark.parametrize(("text", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_text_is_refused(text, reason):
    with pytest.raises(ValueRefused) as caught:
        restore(text)
    assert caught.value.reason == reason


NOT_CANONICAL = {
    "i": [
        *(
            "7",
            "7fffffffffffffff",
            "-8000000000000000",
            "-0",
            "",
            "-",
            "0x8000000000000000",
            "08000000000000000",
        ),
        *("8000_000000000000", " 8000000000000000", "+8000000000000000", "8000000000000000A"),
        *("8000000000000000\u0661", "f" * 83_049, "f" * 1_000_000, f"{10**100_000:x}", f"{-(10**100_000):x}"),
    ],
    "f": ["1.0", "NaN", "-nan", "Infinity", "+inf", " inf", ""],
    "s": [b64(raw) for raw in (b"plain", "\xe9".encode(), b"\xff", b"\xed\xa0", b"\xc0\x80")],
    "b": ["A", "AA", "AA=", "AB==", "AAB=", "AA==\n", "A A=", "AA==AA==", "-_==", "\u0661A==", "===="],
    "D": [
        *("1e5", "1_0", " 1", "+1", "01E+5", "\u0661", "nan", "inf", "1E5", "", "x", "NaN012"),
        *("1" * 100_001, "1E+9999999999999999999999"),
    ],
    "U": [
        *(
            "A" * 32,
            "{" + "a" * 32 + "}",
            "a" * 31,
            "a" * 33,
            "urn:uuid:" + "a" * 32,
            "g" * 32,
            "0x" + "a" * 30,
        ),
        *("_" + "a" * 31, "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"),
    ],
    "P": [b64(raw) for raw in (b"a\0", b"a//b", b"a/", b"./a", b"")],
    "da": ["20240101", "2024-W01-1", "2024-02-30", "2024-01-01T00:00:00", "0000-01-01", ""],
    "td": [
        *("", "0,0", "0,0,0,0", "0,86400,0", "0,-1,0", "0,0,1000000", "00,0,0", "-0,0,0", "1000000000,0,0"),
        *("1_0,0,0", " 1,0,0", "1" * 5000 + ",0,0", "\u0663,0,0", "9" * 13 + ",0,0"),
    ],
}
NOT_ZONES = [
    *(
        "UTC",
        "+0",
        "0",
        "-0",
        "+86400000000",
        "3600000000",
        "+1_0",
        "+",
        "=",
        "=../../etc/passwd",
        "=/etc/passwd",
    ),
    *("=Europe/../UTC", "=UTC\0", "=europe/berlin", "=Europe", "=posix/UTC", "=Mars/Base", "=tzdata.zi"),
]
NOT_MOMENTS = [
    *(("ti", text, 0, "") for text in ("10:00", "100000", "10:00:00Z", "10:00:00.5", "24:00:00", "")),
    *(("dt", text, 0, "") for text in ("2024-01-01", "2024-01-01 00:00:00", "20240101T000000")),
    *(("ti", "10:00:00+00:00", 0, ""), ("dt", "2024-01-01T00:00:00+00:00", 0, "")),
    *(("ti", "10:00:00", 0, zone) for zone in NOT_ZONES),
    *(("ti", "10:00:00", 2, ""), ("ti", "10:00:00", -1, ""), ("ti", "10:00:00", 0, None)),
    *(("ti", "10:00:00"), ("dt", "2024-01-01T00:00:00", 0)),
]


@pytest.mark.parametrize(
    "token",
    [*((tag, text) for tag, texts in NOT_CANONICAL.items() for text in texts), *NOT_MOMENTS],
    ids=lambda token: repr(token)[:50],
)
def test_a_payload_that_is_not_canonical_is_refused(token):
    with pytest.raises(ValueRefused, match=r"^token 1: (not canonical|malformed)$"):
        restore(json.dumps(token, ensure_ascii=False).encode() + b"\n")


EACH = [
    *({1: 2.5, "k": None, b"b": {True}}, 1 << 70, math.nan, "\ud800", frozenset({1, 2})),
    *(Decimal("1E+5"), uuid.UUID(int=1), Path("a"), dt.timedelta(1), dt.date(1, 1, 1)),
    (dt.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), dt.time(1)),
    dt.time(1, tzinfo=dt.timezone(dt.timedelta(seconds=-1))),
]
VALID = encode(EACH, BYTES, ITEMS)
bits_of_tokens = st.sampled_from(
    [b"\n", b'["t",', b'["d",1]\n', b'["S",2]\n', b"0", b"9" * 30, b'"', b"\xff", b",", b"=", b"-", b"]"]
)


@given(st.data())
@settings(max_examples=1500, deadline=None)
def test_a_mutated_text_is_restored_or_refused(data):
    text = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        upto = at + data.draw(st.integers(0, 6))
        text[at:upto] = data.draw(st.binary(max_size=3) | bits_of_tokens)
    reason, value = "", None
    try:
        value = restore(text)
    except ValueRefused as refusal:
        reason = refusal.reason
    assert reason.isprintable()
    assert len(reason) < 100
    assert exact(up(value)) == exact(value)


@given(st.binary() | st.lists(bits_of_tokens).map(b"".join))
@settings(max_examples=300, deadline=None)
def test_garbage_is_restored_or_refused(text):
    with contextlib.suppress(ValueRefused):
        restore(text + b"\n")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(kind):
    assert exact(restore(kind(VALID))) == exact(restore(VALID))


# -------------------------------------------------------------------------------------- cost bounds


def collide(number: int) -> bytes:
    number *= MERSENNE
    return b'["i","%x"]\n' % number if number >> 63 else b"%d\n" % number


def colliding_sets(depth: int, salt: int) -> bytes:
    if depth == 0:
        return collide(salt)
    return b'["F",40]\n' + b"".join(colliding_sets(depth - 1, salt * 40 + n) for n in range(40))


def dear_decimals() -> bytes:
    lines = [b'["D","%d"]\n' % (MERSENNE * n) if n % 2 else collide(1 << (300_000 + n)) for n in range(40)]
    return b'["S",40]\n' + b"".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'["S",15000]\n' + b"".join(map(collide, range(15_000))), id="colliding ints"),
        pytest.param(b'["d",15000]\n' + b"".join(collide(n) + b"0\n" for n in range(15_000)), id="as keys"),
        pytest.param(b'["S",2]\n' + colliding_sets(3, 1) + colliding_sets(3, 2), id="nested frozensets"),
        pytest.param(dear_decimals(), id="Decimals with ints"),
    ],
)
def test_keys_of_one_hash_cost_neither_time_nor_memory(text):
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(ValueRefused, match="too many keys with equal"):
            restore(text)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - started < 5


def test_up_to_64_keys_of_one_hash_are_restored():
    value = {MERSENNE * n for n in range(64)}
    assert up(value) == value


# ------------------------------------------------------------------------------------ the child side


def test_the_encoder_loads_no_module_that_it_may_not_need():
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "from sandbox_worker import values\n"
        "values.encode([1, 'x', {'k': (None, 0.5, {3})}], 1000, 100)\n"
        "print(sorted({*sys.argv[2:]} & {*sys.modules}))"
    )
    root = Path(protocol.__file__).parents[1]
    unwanted = ["json", "dataclasses", "enum", "datetime", "decimal", "typing", "re", "os", "_json"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root, *unwanted],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@given(texts)
@example("\ud800")
def test_a_quoted_text_is_json_whatever_it_holds(text):
    quoted = quote(text, 10**6).encode()
    assert b"\n" not in quoted
    assert restore(quoted + b"\n") == text.encode("utf-8", "backslashreplace").decode()


@pytest.mark.parametrize("make", [lambda i: i << 33, lambda i: (i,), lambda i: i + 0.5])
def test_many_keys_with_freely_chosen_hashes_are_refused_on_both_sides(make):
    keys = [make(i) for i in range(1, protocol.MAX_CHOSEN_HASHES + 2)]
    with pytest.raises(NotSerializable) as refused:
        encode({"ids": set(keys)}, BYTES, ITEMS)
    assert "freely chosen" in refused.value.reason
    text = encode(keys, BYTES, ITEMS).replace(b'["l",', b'["S",', 1)
    with pytest.raises(ValueRefused, match="freely chosen"):
        decode(text, max_bytes=BYTES, max_items=ITEMS)
    fewer = set(keys[:-1])
    assert decode(encode(fewer, BYTES, ITEMS), max_bytes=BYTES, max_items=ITEMS) == fewer


def test_many_small_ints_and_texts_are_fine_as_keys():
    for value in (dict.fromkeys(range(50000)), {str(i) for i in range(50_000)}):
        text = encode(value, BYTES, ITEMS)
        assert decode(text, max_bytes=BYTES, max_items=ITEMS) == value
