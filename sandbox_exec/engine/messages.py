"""What a child may say, as strictly typed records. Every field is bounded; unknown fields are refused.

A frame is one line of JSON, a newline, and the value text that belongs to the message (`values.decode`),
a chunk of one, or for a Failure the traceback as plain text.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from sandbox_worker import protocol

Name = Annotated[str, msgspec.Meta(max_length=protocol.MAX_NAME)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
# Instead of a value text, where the values stand for themselves: a tenth of its cost.
Plain = Annotated[
    dict[str, bool | Int64 | float | str | None], msgspec.Meta(max_length=protocol.MAX_PLAIN_PAIRS)
]


class _Message(msgspec.Struct, tag_field="t", forbid_unknown_fields=True, gc=False):
    pass


class Ready(_Message, tag="ready"):
    """The worker reached Ready."""

    version: Count


class BootFailed(_Message, tag="boot_failed"):
    """The worker cannot go on."""

    why: Name


class Event(_Message, tag="event"):
    """Progress; the data is in the line, or the text is a dict."""

    kind: Name
    plain: Plain | msgspec.UnsetType = msgspec.UNSET


class Ask(_Message, tag="ask"):
    """A request for a host tool; the arguments are in the line, or the text is a dict of them."""

    id: Count
    tool: Name
    plain: Plain | msgspec.UnsetType = msgspec.UNSET


class SteerTaken(_Message, tag="steer_taken"):
    """The target holds these steers now."""

    ids: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=protocol.MAX_STEERS_PENDING)]


class Chunk(_Message, tag="chunk"):
    """Part of the text of a Partial or Result that follows."""


class Partial(_Message, tag="partial"):
    """A partial result; the text is its value."""


class Executing(_Message, tag="executing"):
    """The command takes the worker's place now."""


class Result(_Message, tag="result"):
    """The target returned; the text is its value."""


class Failure(_Message, tag="failure"):
    """The target did not return; the text is its traceback."""

    kind: Annotated[str, msgspec.Meta(pattern=r"^(raised|exit|cancelled|too_large|not_serializable)\Z")]
    name: Name
    type_name: Name
    message: Annotated[str, msgspec.Meta(max_length=protocol.MAX_ERROR_MESSAGE)]
    errno: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


Message = Ready | BootFailed | Event | Ask | SteerTaken | Chunk | Partial | Executing | Result | Failure

_DECODER: Final = msgspec.json.Decoder(Message)
_LINE_END: Final = ord("\n")


class Malformed(Exception):
    """A frame that is no message. The text is ours: nothing of the frame is in it but its kind of fault."""


def decode(frame: bytes) -> tuple[Message, bytes]:
    """Splits and decodes one frame.

    Raises:
        Malformed: anything but a listed message with exactly its fields, within their bounds.
    """
    line, newline, text = frame.partition(b"\n")
    if not newline:
        msg = "a frame without the end of its first line"
        raise Malformed(msg)
    try:
        return _DECODER.decode(line), text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"a frame that is no message ({type(error).__name__})"
        raise Malformed(msg) from error
