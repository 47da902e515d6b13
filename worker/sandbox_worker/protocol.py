"""What host and worker say to each other: constants, bounds and plain codecs.

The only module that both sides import, so it imports built-in modules alone (an exec'd worker
reaches Ready on nothing else).

One channel per child, a SOCK_SEQPACKET pair: a frame is a message, nothing is ever resynchronised.

* Down (host to worker): one marshalled tuple ``(kind, ...)``. The worker trusts its host.
* Up (worker to host): one line of JSON, a newline, then the *value text* that belongs to the
  message, if any. The host believes nothing: ``engine/messages.py`` decodes the line strictly and
  ``engine/values.py`` the text. The data of an event or ask, if it is small and its values stand for
  themselves, is in the line instead, as ``plain``.

A value text is a flat pre-order list of tokens, one JSON token a line, each line ended by a newline.
``None``, booleans, ints of 64 bits, finite floats and strings without lone surrogates stand for
themselves; all else is an array that starts with a tag of ``Tag``. A container's token carries the
number of items that follow, a dict's the number of key-value pairs. A line never contains a raw
newline, so the number of tokens is known before the first is decoded.
"""

from marshal import dumps as _dumps
from marshal import loads as _loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1

# A frame must pass the default socket buffer (212,992 bytes with the kernel's own overhead), and a
# receiver that offers one byte more than the bound sees an oversize frame without recvmsg's flags.
FRAME_BYTES = 65_536
# What a value chunk may carry beside its header line.
CHUNK_BYTES = 65_000
# Payloads above this go down in a sealed memfd, announced by a frame of their own.
INLINE_BYTES = 48_000

# The descriptors that a worker starts with. 0 is /dev/null, 1 and 2 are the output pipes.
CHANNEL_FD = 3
BUNDLE_FD = 4

# Values that travel up.
MAX_DEPTH = 100
MAX_INT_DIGITS = 100_000  # decimal; on the wire hexadecimal, whose conversion is linear
MAX_INT_BITS = 332_192  # ints of no more bits have no more digits: the cheap half of that check
MAX_EQUAL_HASHES = 64  # keys of one hash value in one set or dict: colliding ints cost 2.5 s otherwise
# Keys of one set or dict whose hash values a child can choose at will: with different hashes that probe
# the same places, 59,000 ints cost 10 s, much of it without a chance to stop; 8,192 cost 0.3 s.
MAX_CHOSEN_HASHES = 8_192
MAX_EQUAL_WORK = 1 << 24  # in one text, see `equal_hash_work` and `most_equal_work`; about 0.2 s
TOKEN_OVERHEAD = 3  # two quotes and the line's end: not counted against result_bytes
DEFAULT_RESULT_BYTES = 4 << 20
DEFAULT_RESULT_ITEMS = 1 << 18
MAX_EVENT_ITEMS = 1_000  # of an event's or ask's data, which is decoded on the loop: 9,000 cost it 25 ms
MAX_PLAIN_PAIRS = (MAX_EVENT_ITEMS - 1) // 2
PLAIN_BYTES = 32_768

# Conversation bounds.
MAX_STEER_CHARACTERS = 16_000
MAX_STEERS_PENDING = 64
MAX_ASKS_IN_FLIGHT = 4
MAX_ERROR_MESSAGE = 4_000
MAX_NAME = 200


class Tag:
    """First element of a token that is an array. The second is a string or, where noted, a count."""

    INT = "i"  # hexadecimal, "-" in front when negative
    FLOAT = "f"  # "nan" | "inf" | "-inf"
    STR = "s"  # base64 of UTF-8 with surrogates passed through
    BYTES = "b"  # base64
    LIST = "l"  # count
    TUPLE = "t"  # count
    SET = "S"  # count
    FROZENSET = "F"  # count
    DICT = "d"  # count of pairs; key, value, key, value ... follow
    DECIMAL = "D"  # str(Decimal)
    UUID = "U"  # 32 hexadecimal digits
    PATH = "P"  # base64 of os.fsencode
    DATE = "da"  # isoformat
    TIME = "ti"  # isoformat of the naive part; fold; zone (see ZONE)
    DATETIME = "dt"  # isoformat of the naive part; fold; zone (see ZONE)
    TIMEDELTA = "td"  # "days,seconds,microseconds"


# A zone, the fourth element of TIME and DATETIME: "" none, "utc", "+N" or "-N" a fixed offset of N
# microseconds without a name, "=KEY" a ZoneInfo.


def most_equal_work(max_items: int) -> int:
    """The bound on `equal_hash_work` for a text of at most so many tokens: events are decoded on the loop."""
    return max(1 << 18, min(MAX_EQUAL_WORK, max_items << 6))


def equal_hash_work(keys: list[object]) -> int:
    """Estimates what it costs to tell apart the keys of a set or dict that share a hash value.

    Counting such keys is not enough, because one comparison can be dear: a Decimal with an int of
    100,000 digits takes 170 ms, two nested frozensets of colliding ints take time quadratic in
    their size. Both sides compute this, so that a child learns of the refusal with a path.

    Returns:
        For each group of keys that share a hash, its number of keys times its squared weight,
        summed up. More than `MAX_EQUAL_WORK` when a group exceeds `MAX_EQUAL_HASHES`, or when
        `MAX_CHOSEN_HASHES` is exceeded.

    Raises:
        TypeError: A key is not hashable.
    """
    if len(keys) > MAX_CHOSEN_HASHES and _chosen_hashes(keys) > MAX_CHOSEN_HASHES:
        return MAX_EQUAL_WORK + 1
    hashes = [hash(key) for key in keys]
    if len(set(hashes)) == len(hashes):
        return 0
    seen: set[int] = set()
    groups: dict[int, list[object]] = {}
    for value in hashes:
        if value in seen:
            groups[value] = []
        seen.add(value)
    for value, key in zip(hashes, keys, strict=True):
        if value in groups:
            groups[value].append(key)
    if any(len(group) > MAX_EQUAL_HASHES for group in groups.values()):
        return MAX_EQUAL_WORK + 1
    return sum(len(group) * sum(map(_weight, group)) ** 2 for group in groups.values())


def _chosen_hashes(keys: list[object]) -> int:
    """Counts keys whose hash is neither salted (str, bytes and what is made of them) nor a small int."""
    kinds = set(map(type, keys))
    if kinds == {int} and min(keys) > -_SMALL and max(keys) < _SMALL:  # type: ignore[type-var,operator]
        return 0
    unsalted = [key for key in keys if isinstance(key, (int, float, tuple, frozenset)) or _is_number(key)]
    return sum(1 for key in unsalted if not (isinstance(key, int) and -_SMALL < key < _SMALL))


_SMALL = 1 << 32


def _is_number(key: object) -> bool:
    return type(key).__name__ in ("Decimal", "UUID", "timedelta")


def _weight(key: object) -> int:
    """Sizes a key: 1 for each item, more for numbers whose comparison converts them first."""
    weight, todo = 0, [key]
    while todo:
        item = todo.pop()
        weight += 1
        if isinstance(item, (tuple, frozenset)):
            todo.extend(item)
        elif isinstance(item, int):
            weight += item.bit_length() >> 6
        elif not isinstance(item, (str, bytes, float, type(None))):
            weight += 16 + (len(str(item)) >> 3)
    return weight


class Down:
    """Kinds of frames that the host sends. Each is the first element of a tuple."""

    BOOT = "boot"  # version, plan (dict)
    RUN = "run"  # assignment (dict, see runner.py)
    STEER = "steer"  # id, text
    ANSWER = "answer"  # ask id, status (ANSWERED | DENIED | FAILED), payload
    CANCEL = "cancel"
    MEMFD = "memfd"  # size: the next frame's single descriptor holds this frame's successor


ANSWERED, DENIED, FAILED = "answered", "denied", "failed"


def pack(*message: object) -> bytes:
    """Encodes one message for the worker."""
    return _dumps(message)  # type: ignore[arg-type]  # what we pack is plain


def unpack(frame: bytes) -> "tuple[Any, ...]":
    """Decodes what `pack` made. In the worker only: marshal is not safe against hostile bytes."""
    message: tuple[Any, ...] = _loads(frame)
    return message
