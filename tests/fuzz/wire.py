"""Frames as a hostile child writes them: legal ones in every shape, and ways to spoil one.

Imported on both sides, so that the host knows what a child with the same seed sends. Nothing here may
depend on what differs between two processes (the order of a set of strings does).
"""

import base64
import json
from random import Random

from sandbox_worker import protocol

FRAME_BYTES = 65_536  # written out: a bound that moves is to be noticed
MAX_NAME = 200
CANARY = "canary"  # a file that exists once the host has evaluated something

# What would run if the host unpickled, imported, evaluated or formatted what it reads.
EVIL = [
    f"__import__('os').system('touch {CANARY}')",
    f"open({CANARY!r}, 'w')",
    f"cos\nsystem\n(S'touch {CANARY}'\ntR.",
    "children.hostile:boot",
    "../../../../etc/passwd",
    "{0.__class__.__mro__[1]}%s%n",
    "builtins.exec",
    "\u202e\u200b\x1b]0;x\x07",
]


def quoted(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8")


def tagged(tag: str, payload: str, *more: object) -> bytes:
    return json.dumps([tag, payload, *more], separators=(",", ":")).encode()


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def name(rng: Random) -> str:
    kind = rng.randrange(8)
    if kind < 4:
        return rng.choice(["step", "log", "progress", "x", "done", "__class__", "ended"])
    if kind < 6:
        return rng.choice(EVIL)
    if kind == 6:
        return "".join(
            chr(rng.choice([65, 0xE9, 0x4E2D, 0x1F600])) for _ in range(rng.randrange(MAX_NAME + 1))
        )
    return ""


# Value texts: lists of tokens in their one canonical form.


def scalar(rng: Random) -> bytes:
    return _SCALARS[rng.randrange(len(_SCALARS))](rng)


_SCALARS = [
    lambda rng: rng.choice([b"null", b"true", b"false", b"0", b"-1"]),
    lambda rng: b"%d" % rng.randrange(-(1 << 63), 1 << 63),
    lambda rng: repr(rng.uniform(-1e9, 1e9)).encode(),
    lambda rng: rng.choice([b"-0.0", b"5e-324", b"1.7976931348623157e+308"]),
    lambda rng: quoted(name(rng)),
    lambda rng: quoted(rng.choice(EVIL)),
    lambda rng: quoted('a\n\t"\\/\u2028' * rng.randrange(4)),
    lambda rng: tagged(
        "i", f"{rng.choice([1, -1]) * ((1 << 63) + 1 + rng.getrandbits(rng.choice([1, 64, 900]))):x}"
    ),
    lambda rng: tagged("f", rng.choice(["nan", "inf", "-inf"])),
    lambda rng: tagged("s", b64("\ud800x".encode("utf-8", "surrogatepass") * rng.randrange(1, 4))),
    lambda rng: tagged("b", b64(rng.randbytes(rng.randrange(40)))),
    lambda rng: tagged("b", b64(EVIL[2].encode())),
    lambda rng: tagged("D", rng.choice(["0", "-1.50", "1E+999", "NaN", "-Infinity", "0.0001"])),
    lambda rng: tagged("U", f"{rng.getrandbits(128):032x}"),
    lambda rng: tagged("P", b64(rng.choice([b".", b"/etc/passwd", b"a/b", b"../..", b"\xff\xfe"]))),
    lambda rng: tagged("da", f"{rng.randrange(1, 9999):04d}-0{rng.randrange(1, 9)}-{rng.randrange(10, 28)}"),
    lambda rng: tagged("ti", "03:04:05", rng.randrange(2), rng.choice(_ZONES)),
    lambda rng: tagged("dt", "2024-02-29T03:04:05.000006", rng.randrange(2), rng.choice(_ZONES)),
    lambda rng: tagged("td", f"{rng.randrange(-99, 99)},{rng.randrange(86_400)},{rng.randrange(10**6)}"),
]
_ZONES = ["", "utc", "+3600000000", "-1", "=Europe/Berlin", "=UTC"]


def tokens(rng: Random, depth: int = 0) -> list[bytes]:
    if depth > 3 or rng.random() < 0.6:
        return [scalar(rng)]
    kind, count = rng.choice("lltSFd"), rng.randrange(5)
    made = [b'["%s",%d]' % (kind.encode(), count)]
    for number in range(count):
        if kind in "SF":
            made.append(b"%d" % (number * rng.randrange(1, 1000)))
            if count > 1:  # equal items would be illegal
                made[-1] = b"%d" % (number << 40 | rng.randrange(1000))
        elif kind == "d":
            made.append(
                rng.choice([quoted(f"key {number}"), b"%d" % number, tagged("b", b64(b"%d" % number))])
            )
        if kind not in "SF":
            made += tokens(rng, depth + 1)
    return made


def text(rng: Random) -> bytes:
    return b"".join(token + b"\n" for token in tokens(rng))


def named(rng: Random) -> bytes:
    """The text of a dict of names, as events and asks have."""
    count = rng.randrange(5)
    made = [b'["d",%d]' % count]
    for number in range(count):
        made += [quoted(f"{rng.choice(['n', 'self', '__init__', ''])}{number}"), *tokens(rng, 2)]
    return b"".join(token + b"\n" for token in made)


def wide(rng: Random, room: int) -> bytes:
    """A text of a dict that just fits `room` bytes and an event's bound on values."""
    item = rng.choice([b"0\n", b'["l",0]\n', b'["D","1.5"]\n', b'"' + b"x" * 500 + b'"\n', b'["S",0]\n'])
    head = b'["d",1]\n"all"\n["l",%06d]\n' % 0
    count = min((room - len(head)) // len(item), protocol.MAX_EVENT_ITEMS - 3)
    return (b'["d",1]\n"all"\n["l",%d]\n' % count) + item * count


# Frames.


def head(tag: str, **fields: object) -> bytes:
    return json.dumps({"t": tag, **fields}, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def varied_head(rng: Random, tag: str, **fields: object) -> bytes:
    """The same in another shape that JSON allows: order, blanks, escapes."""
    items = [("t", tag), *fields.items()]
    rng.shuffle(items)
    return json.dumps(
        dict(items),
        ensure_ascii=rng.random() < 0.5,
        separators=(rng.choice([",", " , "]), rng.choice([":", " :\t"])),
    ).encode("utf-8")


def frame(header: bytes, body: bytes = b"") -> bytes:
    return header + b"\n" + body


def event(rng: Random) -> bytes:
    shape = varied_head if rng.random() < 0.3 else lambda _, tag, **fields: head(tag, **fields)
    if rng.random() < 0.3:
        return frame(shape(rng, "event", kind=name(rng), plain=plain(rng)))
    return frame(shape(rng, "event", kind=name(rng)), named(rng))


def brief_event(rng: Random) -> bytes:
    if rng.random() < 0.5:
        return frame(head("event", kind="step", plain={"n": rng.randrange(1000)}))
    return frame(head("event", kind="step"), b'["d",1]\n"n"\n%d\n' % rng.randrange(1000))


def plain(rng: Random) -> dict[str, object]:
    """Data that may be in the line."""
    values = [None, True, 0, -(1 << 63), (1 << 63) - 1, 0.1, -0.0, 5e-324, "", "\u00e9\0\n\u2028", *EVIL]
    names = ["n", "self", "__init__", "", "t", "kind", "\U0001f600"]
    return {f"{rng.choice(names)}{number}": rng.choice(values) for number in range(rng.randrange(6))}


def large_event(rng: Random) -> bytes:
    header = head("event", kind="large")
    return frame(header, wide(rng, FRAME_BYTES - len(header) - 1))


def ask(rng: Random, tool: str | None = None) -> bytes:
    number = rng.choice([0, 1, rng.getrandbits(52), (1 << 53) - 1])
    tool = name(rng) if tool is None else tool
    if rng.random() < 0.3:
        return frame(head("ask", id=number, tool=tool, plain=plain(rng)))
    return frame(head("ask", id=number, tool=tool), named(rng))


def steer_taken(numbers: list[int]) -> bytes:
    return frame(head("steer_taken", ids=numbers))


def result(body: bytes) -> bytes:
    return frame(head("result"), body)


def failure(rng: Random, kind: str | None = None) -> bytes:
    kind = kind or rng.choice(["raised", "exit", "cancelled", "too_large", "not_serializable"])
    header = head(
        "failure",
        kind=kind,
        name=rng.choice(["ValueError", "Evil", EVIL[0][:MAX_NAME]]),
        type_name=rng.choice(["builtins.ValueError", "os.system", "sandbox_exec.errors.ChildError"]),
        message=rng.choice(["", *EVIL, "m" * 4_000]),
        errno=rng.choice([0, 2, 12, 65_535]),
    )
    return frame(header, rng.choice([b"", b"Traceback ...\n", b"\xff\xfe\0" * 100]))


def in_chunks(rng: Random, tag: str, body: bytes) -> list[bytes]:
    """A message whose text comes in several frames, cut anywhere."""
    cuts = sorted(rng.randrange(1, len(body) + 1) for _ in range(rng.randrange(1, 4))) if body else []
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    return [frame(head("chunk"), part) for part in parts[:-1] if part] + [frame(head(tag), parts[-1])]


def talk(rng: Random) -> list[list[bytes]]:
    """What a child may say at any time while it runs, in units that belong together."""
    units = [[event(rng)] for _ in range(8)] + [[brief_event(rng)] for _ in range(24)]
    units += [[ask(rng)] for _ in range(3)]
    units += [[frame(head("partial"), text(rng))], in_chunks(rng, "partial", text(rng))]
    if rng.random() < 0.03:  # each takes the host 5 to 25 ms
        units.append([large_event(rng)])
    return units


# Spoiling one frame.


def flipped(rng: Random, whole: bytes) -> bytes:
    spoilt = bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def cut(rng: Random, whole: bytes) -> bytes:
    return whole[: rng.randrange(1, len(whole))]


def spliced(rng: Random, whole: bytes, other: bytes) -> bytes:
    start, end = sorted(rng.randrange(len(whole) + 1) for _ in range(2))
    piece = other[rng.randrange(len(other)) :][: rng.randrange(1, 60)]
    return (whole[:start] + piece + whole[end:])[:FRAME_BYTES] or b"\n"


def reworded(rng: Random, whole: bytes) -> bytes:
    """One JSON value of the header becomes another kind of value."""
    header, _, body = whole.partition(b"\n")
    fields = json.loads(header)
    fields[rng.choice(list(fields))] = rng.choice(WRONG_VALUES)
    return frame(json.dumps(fields).encode(), body)


WRONG_VALUES = [
    None, True, 1, -1, 1.5, 1 << 53, 1 << 64, 10**400, "", "x" * 70, [], {}, ["event"], [[]],
    {"t": "event"}, "ready", "result", "executing", "\0", "event ",
]  # fmt: skip

BAD_PLAINS = [
    b"null", b"[]", b"0", b'""', b"true", b'{"a":[]}', b'{"a":{}}', b'{"a":NaN}',
    b'{"a":9223372036854775808}',
    b'{"a":-9223372036854775809}', b'{"a":' + b"9" * 5_000 + b"}", b'{"a":"\\ud800"}', b'{"\\ud800":0}',
    b"{1:1}",
    b"{" + b",".join(b'"%d":0' % n for n in range(500)) + b"}", b'{"a":1e999}',
]  # fmt: skip

GARBAGE = [
    b"\n", b"\n\n", b"null\n", b"[]\n", b"{}\n", b'"event"\n', b"1\n", b'{"t":"event"', b'{"t":"event"}\n',
    b'{"t":"nonsense"}\n', b'{"t":""}\n', b'{"t":null}\n', b'{"t":["event"]}\n', b'{"t":1,"kind":""}\n',
    b'{"kind":"x"}\n["d",0]\n', b'["event","x"]\n["d",0]\n', b'{"t":"event","kind":"x","at":1}\n["d",0]\n',
    b'{"t":"chunk","x":1}\nx', b'{"t":"event","kind":NaN}\n["d",0]\n', b"\x80\x04\x95.\n",
    b"\xff" * 300 + b"\n", b'\xef\xbb\xbf{"t":"event","kind":"x"}\n["d",0]\n',
    b'{"t":"event","kind":"\xff"}\n["d",0]\n', b'{"t":"event","kind":"\xed\xa0\x80"}\n["d",0]\n',
    b'{"t":"event","kind":"\\ud800"}\n["d",0]\n', b'{"t":"event","kind":"\\x41"}\n["d",0]\n',
    b"{'t':'event','kind':'x'}\n[\"d\",0]\n",
    b'{"t":"event","kind":"' + b"x" * (MAX_NAME + 1) + b'"}\n["d",0]\n',
    b'{"t":"event","kind":"' + b"x" * 65_000 + b'"}\n["d",0]\n',
    b'{"t":"event","kind":' + b"[" * 60_000 + b"\n",
    b'{"t":"event","kind":"x","deep":' + b'{"a":' * 12_000 + b"\n", b"[" * 65_535 + b"\n",
    b'{"t":' * 13_000 + b"\n", b'{"t":"event","kind":"x","n":' + b"9" * 60_000 + b"}\n",
    b'{"t":"ask","id":' + b"9" * 60_000 + b',"tool":"x"}\n["d",0]\n',
    b'{"t":"ask","id":-1,"tool":"x"}\n["d",0]\n',
    b'{"t":"ask","id":9007199254740992,"tool":"x"}\n["d",0]\n',
    b'{"t":"ask","id":true,"tool":"x"}\n["d",0]\n', b'{"t":"ask","id":1e999,"tool":"x"}\n["d",0]\n',
    b'{"t":"ask","id":0.5,"tool":"x"}\n["d",0]\n', b'{"t":"ask","id":"1","tool":"x"}\n["d",0]\n',
    b'{"t":"ask","tool":"x"}\n["d",0]\n', b'{"t":"ask","id":1,"tool":null}\n["d",0]\n', b'{"t":"chunk"}\n',
    b'{"t":"chunk"}', b'{"t":"executing"}\nx', b'{"t":"steer_taken","ids":[]}\n',
    b'{"t":"steer_taken","ids":[1,"2"]}\n',
    b'{"t":"steer_taken","ids":[' + b",".join([b"1"] * 65) + b"]}\n",
    b'{"t":"steer_taken","ids":{"1":1}}\n', b'{"t":"steer_taken","ids":1}\n',
    b'{"t":"steer_taken","ids":[' + b"1," * 30_000 + b"1]}\n",
    b'{"t":"failure","kind":"other","name":"","type_name":"","message":"","errno":0}\n',
    b'{"t":"failure","kind":"raised\\n","name":"","type_name":"","message":"","errno":0}\n',
    b'{"t":"failure","kind":"raised","name":"","type_name":"","message":"","errno":-1}\n',
    b'{"t":"failure","kind":"raised","name":"","type_name":"","message":"","errno":65536}\n',
    b'{"t":"failure","kind":"raised","name":"","type_name":"","message":"' + b"m" * 4_001 + b'","errno":0}\n',
    b'{"t":"failure","kind":"raised"}\n',
    b'{"t":"event","kind":"x","plain":{}}\n["d",0]\n', b'{"t":"ask","id":1,"tool":"x","plain":{}}\n\n',
    *(b'{"t":"event","kind":"x","plain":%b}\n' % bad for bad in BAD_PLAINS),
    b'{"t":"result","plain":{}}\n', b'{"t":"partial","plain":{}}\n0\n',
]  # fmt: skip
"""Frames that no phase permits and no decoder may take, each for certain."""

BAD_TEXTS = [
    b"", b"\n", b"\n\n", b"0", b"0\n0\n", b'["l",0]', b'["l",1]\n', b'["l",0]\n0\n', b'["l",2]\n0\n',
    b'["l",-1]\n', b'["l",1.0]\n0\n', b'["l",true]\n0\n', b'["l","1"]\n0\n', b'["l",1,0]\n0\n',
    b'["l",99999999999999999999]\n', b'["l",9223372036854775807]\n', b'["d",4611686018427387904]\n',
    b'["d",1]\n0\n', b'["d",2]\n"a"\n0\n"a"\n1\n', b'["d",1]\n["l",0]\n0\n', b'["S",2]\n1\n1\n',
    b'["S",2]\n1\ntrue\n', b'["S",1]\n["S",0]\n', b"[]\n", b"{}\n", b'{"a":1}\n', b"[1]\n", b'["x","1"]\n',
    b'["",""]\n', b'["i","1"]\n', b'["i","0x10000000000000000"]\n', b'["i","1_0000000000000000"]\n',
    b'["i"," 10000000000000000"]\n', b'["i","FFFFFFFFFFFFFFFFFF"]\n', b'["i",5]\n', b'["f","1.0"]\n',
    b'["f","NaN"]\n', b'["f","infinity"]\n', b'["s","eA=="]\n', b'["s","//8="]\n', b'["s","*"]\n',
    b'["b","eB=="]\n', b'["b","eA"]\n', b'["b","eA==eA=="]\n', b'["b","e A="]\n', b'["D","1e5"]\n',
    b'["D"," 1"]\n', b'["D","1_0"]\n', b'["D","' + b"9" * 60_000 + b'.x"]\n', b'["D",""]\n', b'["U","0"]\n',
    b'["U","{12345678123456781234567812345678}"]\n', b'["P","AA=="]\n', b'["P","Ly8v"]\n',
    b'["P","YS8v"]\n', b'["da","2024-1-1"]\n', b'["da","20240101"]\n', b'["da","2023-02-29"]\n',
    b'["da","0000-01-01"]\n', b'["ti","03:04",0,""]\n', b'["ti","03:04:05",2,""]\n', b'["ti","03:04:05"]\n',
    b'["ti","03:04:05+00:00",0,""]\n', b'["ti","03:04:05",0,"../../etc/passwd"]\n',
    b'["ti","03:04:05",0,"=../../etc/passwd"]\n', b'["ti","03:04:05",0,"=/etc/localtime"]\n',
    b'["ti","03:04:05",0,"="]\n', b'["ti","03:04:05",0,"+0"]\n',
    b'["ti","03:04:05",0,"+99999999999999999999"]\n', b'["td","1,2"]\n', b'["td","0,-1,0"]\n',
    b'["td","0,86400,0"]\n', b'["td","99999999999,0,0"]\n', b'["td","1,2,3,4"]\n', b"1e999\n", b"-1e999\n",
    b"NaN\n", b"Infinity\n", b"18446744073709551616\n", b"9223372036854775808\n", b"9" * 60_000 + b"\n",
    b'"\xff"\n', b'"\xed\xa0\x80"\n', b'"\\ud800"\n', b'"a\n"\n', b'"\n', b"'a'\n", b"True\n", b"nul\n",
    b"[" * 60_000 + b"\n", b"[" * 1000 + b"]" * 1000 + b"\n", b'{"a":' * 10_000 + b"\n",
    b'["l",1]\n' * 101 + b"0\n", b"\0\n", b"\xef\xbb\xbf0\n", b"0\r\n0\n", b"0\n\0", b"\x80\x04N.",
    b'["d",1]\n["D","sNaN"]\n0\n', b'["S",1]\n["D","sNaN"]\n',
    b'["S",70]\n' + b"".join(b'["i","%x"]\n' % (((1 << 61) - 1) * (number + 8)) for number in range(70)),
]  # fmt: skip
"""Texts that no encoder writes, each for certain."""
