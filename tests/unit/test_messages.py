"""The first line of a frame: a listed message with exactly its fields, or nothing."""

import json
import math
import time

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz import wire
from sandbox_exec.engine import messages
from sandbox_exec.engine.messages import Malformed, decode
from sandbox_exec.engine.states import Message
from sandbox_worker import protocol
from sandbox_worker import values as written

FAILURE = {"kind": "raised", "name": "E", "type_name": "m.E", "message": "no", "errno": 2}
LEGAL = {
    "ready": {"version": 1},
    "boot_failed": {"why": "no"},
    "event": {"kind": "step"},
    "ask": {"id": 7, "tool": "notes"},
    "steer_taken": {"ids": [1, 2]},
    "chunk": {},
    "partial": {},
    "executing": {},
    "result": {},
    "failure": FAILURE,
}
CLASSES = {cls.__struct_config__.tag: cls for cls in messages.Message.__args__}
# Of the garbage that no child may send, what is a message and refused for its text, in hearing.py.
REFUSED_LATER = {
    b'{"t":"chunk"}\n',
    b'{"t":"executing"}\nx',
    b'{"t":"event","kind":"x","plain":{}}\n["d",0]\n',
    b'{"t":"ask","id":1,"tool":"x","plain":{}}\n\n',
}


def frame(tag, **fields):
    return json.dumps({"t": tag, **fields}).encode() + b"\n"


def test_the_table_of_states_names_every_message():
    assert set(CLASSES) == set(LEGAL) == {message.value for message in Message}


@pytest.mark.parametrize("tag", LEGAL)
@pytest.mark.parametrize("text", [b"", b"0\n", b"\n\n", bytes(range(256))])
def test_a_message_is_read_and_its_text_left_alone(tag, text):
    assert decode(frame(tag, **LEGAL[tag]) + text) == (CLASSES[tag](**LEGAL[tag]), text)


@pytest.mark.parametrize("tag", LEGAL)
def test_exactly_its_fields(tag):
    for missing in LEGAL[tag]:
        with pytest.raises(Malformed):
            decode(frame(tag, **{name: value for name, value in LEGAL[tag].items() if name != missing}))
    for extra in ("x", "T", "", "pid", "text", "__class__"):
        with pytest.raises(Malformed):
            decode(frame(tag, **LEGAL[tag], **{extra: 1}))


@pytest.mark.parametrize(("tag", "field"), [(tag, field) for tag in LEGAL for field in LEGAL[tag]])
@pytest.mark.parametrize("wrong", wire.WRONG_VALUES, ids=lambda value: repr(value)[:20])
def test_a_field_of_another_type_or_beyond_its_bound_is_refused(tag, field, wrong):
    text_for_text = (
        type(wrong) is str and type(LEGAL[tag][field]) is str and (tag, field) != ("failure", "kind")
    )
    one_for_number = type(wrong) is int and wrong == 1 and type(LEGAL[tag][field]) is int
    whole = frame(tag, **{**LEGAL[tag], field: wrong})
    if text_for_text or one_for_number:
        decode(whole)
    else:
        with pytest.raises(Malformed):
            decode(whole)


NAMES = [
    ("boot_failed", "why"),
    ("event", "kind"),
    ("ask", "tool"),
    ("failure", "name"),
    ("failure", "type_name"),
]


@pytest.mark.parametrize(
    ("tag", "field", "most", "beyond"),
    [
        *((tag, field, char * 200, char * 201) for tag, field in NAMES for char in "x\u00e9\U0001f600\0"),
        ("failure", "message", "\u00e9" * 4_000, "\u00e9" * 4_001),
        ("failure", "errno", 65_535, 65_536),
        ("failure", "errno", 0, -1),
        ("ask", "id", (1 << 53) - 1, 1 << 53),
        ("ready", "version", 0, -1),
        ("steer_taken", "ids", [5] * 64, [5] * 65),
        ("steer_taken", "ids", [0], []),
        ("failure", "kind", "exit", "exit\n"),
        ("failure", "kind", "cancelled", "xcancelled"),
    ],
)  # fmt: skip
def test_bounds(tag, field, most, beyond):
    message, _ = decode(frame(tag, **{**LEGAL[tag], field: most}))
    assert getattr(message, field) == most
    with pytest.raises(Malformed):
        decode(frame(tag, **{**LEGAL[tag], field: beyond}))


@pytest.mark.parametrize(
    "garbage", [g for g in wire.GARBAGE if g not in REFUSED_LATER], ids=lambda g: repr(g[:40])
)
def test_garbage_is_refused_at_once_and_not_quoted(garbage):
    started = time.perf_counter()
    with pytest.raises(Malformed) as refused:
        decode(garbage)
    assert time.perf_counter() - started < 0.1
    assert str(refused.value) in {
        "a frame without the end of its first line",
        "a frame that is no message (DecodeError)",
        "a frame that is no message (ValidationError)",
        "a frame that is no message (UnicodeDecodeError)",
        "a frame that is no message (RecursionError)",
    }


plain_values = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text()
    | st.floats(allow_nan=False)
)


@given(st.dictionaries(st.text(), plain_values, max_size=8))
def test_data_whose_values_stand_for_themselves_travels_in_the_line(data):
    line = written.plain(data)
    if any(type(value) is float and math.isinf(value) for value in data.values()):
        assert line is None
        return
    message, text = decode(b'{"t":"event","kind":"x","plain":%b}\n' % line.encode())
    assert text == b""
    assert list(map(repr, message.plain.items())) == list(map(repr, data.items()))


@pytest.mark.parametrize(
    "data",
    [
        {"a": b""}, {"a": math.nan}, {"a": 1 << 63}, {"a": -(1 << 63) - 1}, {"a": "\ud800"}, {"\udc80": 1},
        {"a": []}, {"a": {}}, {"a": ()}, {"a": type("Int", (int,), {})(1)},
        {"a": type("Text", (str,), {})("x")}, {"a": "x" * 40_000}, {f"{n}": 0 for n in range(500)},
        {"a": Message.EVENT}, {"a": 1j},
    ],
    ids=lambda data: repr(data)[:40],
)  # fmt: skip
def test_other_data_does_not(data):
    assert written.plain(data) is None


def test_as_much_data_fits_the_line_as_fits_a_text():
    data = {f"{n}": n for n in range(499)}
    message, _ = decode(b'{"t":"ask","id":1,"tool":"x","plain":%b}\n' % written.plain(data).encode())
    assert message.plain == data
    assert len(written.encode(data, 65_000, protocol.MAX_EVENT_ITEMS).splitlines()) == 999


def check(whole):
    """Decoded to exactly what another reader of JSON sees, or refused."""
    try:
        message, text = decode(whole)
    except Malformed:
        return
    line, _, rest = whole.partition(b"\n")
    assert text == rest
    fields = json.loads(line)
    assert CLASSES[fields.pop("t")] is type(message)
    assert fields == {k: v for k, v in msgspec.structs.asdict(message).items() if v is not msgspec.UNSET}
    plain = getattr(message, "plain", msgspec.UNSET) is not msgspec.UNSET
    assert len(msgspec.json.encode(message)) < 30_000 or type(message) is messages.Failure or plain


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_refused(whole):
    check(whole)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(list(LEGAL)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["t", *{field for fields in LEGAL.values() for field in fields}, "x"])


@given(st.dictionaries(names, json_values, max_size=7), st.sampled_from(list(LEGAL)), st.booleans())
def test_any_json_is_a_message_or_refused(fields, tag, tagged):
    if tagged:
        fields = {"t": tag, **{name: value for name, value in fields.items() if name != "t"}}
    check(json.dumps(fields).encode() + b"\n")


@given(st.sampled_from(list(LEGAL)), st.data())
@example("failure", None)
def test_a_spoilt_message_is_a_message_or_refused(tag, data):
    whole = bytearray(frame(tag, **LEGAL[tag]))
    if data is not None:
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(whole) - 1))
            end = data.draw(st.integers(at, min(at + 8, len(whole))))
            whole[at:end] = data.draw(st.binary(max_size=8))
            if not whole:
                return
    whole = bytes(whole)
    header = whole.partition(b"\n")[0]
    try:
        pairs = json.loads(header, object_pairs_hook=lambda found: found)
        twice = len({name for name, _ in pairs}) != len(pairs)
    except (ValueError, TypeError):
        twice = True  # raw control characters, which json refuses and msgspec need not
    if not twice:
        check(whole)
    else:
        try:
            decode(whole)
        except Malformed:
            return
