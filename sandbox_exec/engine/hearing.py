"""The host's half of the conversation with one child: believes nothing, answers, keeps what was said.

A message that is not permitted now, or is not exactly what it should be, poisons the channel: nothing
after it is read, and the child is ended. Everything here runs on the broker's thread.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from sandbox_exec.engine import messages, states, values
from sandbox_exec.engine.channel import Channel
from sandbox_exec.engine.failures import classified
from sandbox_exec.engine.states import Cause, Message, SubagentState
from sandbox_exec.engine.stdio import Stdio
from sandbox_worker import protocol

if TYPE_CHECKING:
    from sandbox_exec.confinement.profile import Limits
    from sandbox_exec.engine.child import Child
    from sandbox_exec.engine.outcome import ErrorInfo
    from sandbox_exec.engine.ward import Ward
    from sandbox_exec.toolsets.tool import Tool

INLINE_DECODE: Final = 16_384  # larger texts are decoded off the loop
MAX_DENIALS: Final = 64
# Frames that the kernel has no room for: all that an honest child can let come together, steers and answers.
MAX_WAITING: Final = 2 * (protocol.MAX_STEERS_PENDING + protocol.MAX_ASKS_IN_FLIGHT)
ITEM_BYTES: Final = 220  # what one value of its data takes at most, beside its text: an empty set


class Keeper(Protocol):
    """Who a child's words matter to."""

    life: states.Life

    def feed(self, event: states.Event) -> None:
        """Takes a step in the child's life."""

    def settle(self) -> None:
        """Concludes, if the process is gone and all it said is known."""

    def confirm(self) -> None:
        """Checks the worker from outside, and lets it go on or not."""


class Hearing:
    """Listens to one child.

    Attributes:
        value: its result, or the partial one.
        partial: the text of its last partial result.
        failure: its failure, as far as it is the child's word.
        denials: names of tools that it asked for and was refused.
        busy: a text is being decoded off the loop; nothing else of this child is handled meanwhile.
    """

    __slots__ = (
        "_asks",
        "_channel",
        "_child",
        "_frame",
        "_grants",
        "_is_command",
        "_keeper",
        "_limits",
        "_permitted",
        "_said_ready",
        "_steers_sent",
        "_text",
        "_ward",
        "busy",
        "denials",
        "failure",
        "partial",
        "value",
    )  # fmt: skip

    def __init__(
        self,
        ward: Ward,
        child: Child,
        limits: Limits,
        keeper: Keeper,
        *,
        is_command: bool,
        grants: Mapping[str, Tool],
    ) -> None:
        self._ward, self._child, self._limits, self._keeper = ward, child, limits, keeper
        self._permitted = _CLASSES[keeper.life.permitted]
        self._said_ready = False
        self._channel: Channel | None = None
        self._text: bytearray | None = None  # chunks so far
        self._asks = self._steers_sent = 0
        self._frame = b""  # the one at hand
        self._grants, self._is_command = grants, is_command
        self.value: object = None
        self.partial: bytes | None = None
        self.failure: ErrorInfo | None = None
        self.denials: list[str] = []
        self.busy = False

    def permit(self, permitted: frozenset[Message]) -> None:
        """Sets what may be said from now on."""
        self._permitted = _CLASSES[permitted]

    def attach(self, sock: socket.socket, *, attest: bool) -> None:
        """Takes the host's end of a new channel, in place of any before."""
        self.close()
        self._said_ready = False
        self._channel = Channel(
            self._ward.broker, sock, self._on_frame, self._on_closed, self.poison, self._unable, attest=attest
        )

    def open(self) -> None:
        """Begins to listen."""
        assert self._channel is not None
        self._channel.open()

    @property
    def peer(self) -> int:
        """The pid of the process that spoke first, as the kernel attested it; 0 where it was not asked."""
        return self._channel.peer if self._channel is not None else 0

    def drain(self) -> bool:
        """Reads on after the child's death; True once nothing is left."""
        return self._channel is None or self._channel.drain()

    def close(self) -> None:
        """Nothing is read or sent any more; idempotent."""
        if self._channel is not None:
            self._channel.close()

    def abandon(self) -> None:
        """Closes the descriptor in a forked copy of the host."""
        if self._channel is not None:
            self._channel.abandon()

    # Down.

    def send(self, frame: bytes) -> None:
        """Sends one message; what cannot be sent ends the child."""
        if self._channel is None:
            return
        try:
            self._channel.send(frame)
        except OSError as error:  # no memory, or no descriptor, for a large one
            self._unable(f"a message could not be sent: {error}")

    def send_input(self, given: bytes | Stdio) -> None:
        """Sends what the child is to read, or its three standard descriptors."""
        if self._channel is None:
            return
        try:
            if isinstance(given, Stdio):
                self._channel.send_descriptors(given.fds)
            else:
                self._channel.send_data(given)
        except OSError as error:
            self._unable(f"stdin could not be sent: {error}")

    def _unable(self, why: str) -> None:
        self.close()
        self._keeper.feed(states.LimitHit(Cause.HOST, why))

    def flush_steers(self) -> None:
        """Sends the steers that were accepted since the last time; before Run they wait."""
        if not self._keeper.life.ran:
            return
        for number, text in self._child._unsent(self._steers_sent):  # noqa: SLF001 one object in two halves
            self._steers_sent = number
            self.send(protocol.pack(protocol.Down.STEER, number, text))

    # Up.

    def poison(self, why: str) -> None:
        """Nothing that it says counts from here on."""
        self.close()
        self._keeper.feed(states.Violation(why))

    def _on_closed(self) -> None:
        self._keeper.feed(states.ChannelClosed())

    def _on_frame(self, frame: bytes) -> None:
        self._frame = frame
        try:
            message, text = messages.decode(frame)
        except messages.Malformed as error:
            self.poison(str(error))
            return
        kind = type(message)
        if kind not in self._permitted:
            self.poison(f"{_HANDLERS[kind][0].value!r} while {self._keeper.life.phase.name}")
            return
        try:
            _HANDLERS[kind][1](self, message, text)
        except _Unacceptable as error:
            self.poison(str(error))

    def _ready(self, message: messages.Ready, text: bytes) -> None:
        _nothing_more(text)
        if self._said_ready:  # it is looked at, or being ended
            msg = "it said Ready already"
            raise _Unacceptable(msg)
        self._said_ready = True
        if message.version != protocol.VERSION:
            why = f"the worker speaks version {message.version}, this host {protocol.VERSION}"
            self._keeper.feed(states.BootFailed(Cause.BOOT_FAILED, why))
            return
        self._keeper.confirm()

    def _boot_failed(self, message: messages.BootFailed, text: bytes) -> None:
        _nothing_more(text)
        self._keeper.feed(states.BootFailed(Cause.BOOT_FAILED, message.why))

    def _event(self, message: messages.Event, text: bytes) -> None:
        data = self._named(message, text)
        size = _weight(self._frame) + ITEM_BYTES * (2 * len(data) + text.count(b"\n"))
        self._child._log.add("child", message.kind, data, size)  # noqa: SLF001 one object in two halves

    def _ask(self, message: messages.Ask, text: bytes) -> None:
        args = self._named(message, text)
        if self._asks >= protocol.MAX_ASKS_IN_FLIGHT:
            msg = "more asks in flight than agreed"
            raise _Unacceptable(msg)
        if self._channel is not None and self._channel.waiting > MAX_WAITING:
            msg = "it asks on and reads no answer"
            raise _Unacceptable(msg)
        self._asks += 1
        tool, child = message.tool, self._child

        def answer(frame: bytes, denied: bool) -> None:
            self._asks -= 1
            if denied:
                if len(self.denials) < MAX_DENIALS:
                    self.denials.append(tool)
                child._log.add("executor", "denied", {"tool": tool})  # noqa: SLF001
            self.send(frame)

        self._ward.asks.run(child, self._grants, message.id, tool, args, answer)

    def _steer_taken(self, message: messages.SteerTaken, text: bytes) -> None:
        _nothing_more(text)
        if not self._child._take(message.ids, self._steers_sent):  # noqa: SLF001
            msg = "it took a steer that it was not sent"
            raise _Unacceptable(msg)
        self._child._log.add("executor", "steered", {"count": len(message.ids)})  # noqa: SLF001

    def _chunk(self, _message: messages.Chunk, text: bytes) -> None:
        if not text:
            msg = "an empty chunk"
            raise _Unacceptable(msg)
        if self._text is None:
            self._text = bytearray()
        self._text += text
        most = (self._limits.result_bytes or 0) + protocol.TOKEN_OVERHEAD * (self._limits.result_items or 0)
        if len(self._text) > most:
            self._text = None
            self.close()
            self._keeper.feed(states.LimitHit(Cause.RESULT_SIZE))

    def _partial(self, _message: messages.Partial, text: bytes) -> None:
        self.partial = self._whole(text)  # decoded only if it is needed

    def _executing(self, _message: messages.Executing, text: bytes) -> None:
        _nothing_more(text)
        if not self._is_command:
            msg = "a callable that says it becomes a command"
            raise _Unacceptable(msg)
        self._keeper.feed(states.Executing())

    def _result(self, _message: messages.Result, text: bytes) -> None:
        if self._is_command:
            msg = "a result from a command"
            raise _Unacceptable(msg)
        whole = self._whole(text)
        if len(whole) <= INLINE_DECODE:
            self._succeed(self._decoded(whole))
        else:
            self.decode_off_loop(whole, self._succeed)

    def _succeed(self, value: object) -> None:
        self.value = value
        self._keeper.feed(states.Verdict(SubagentState.SUCCEEDED, None))

    def _failure(self, message: messages.Failure, text: bytes) -> None:
        verdict, self.failure = classified(
            message, text, self._limits, cancelled=self._keeper.life.cancel_asked
        )
        self._keeper.feed(verdict)

    def _whole(self, text: bytes) -> bytes:
        if self._text is None:
            return text
        self._text += text  # not a sum of two: that would hold the text three times
        whole, self._text = bytes(self._text), None
        return whole

    def _named(self, message: messages.Event | messages.Ask, text: bytes) -> dict[str, object]:
        plain = message.plain
        if plain is not msgspec.UNSET:
            _nothing_more(text)
            return plain  # type: ignore[return-value]
        data = self._decoded(text, protocol.MAX_EVENT_ITEMS)
        if type(data) is dict:
            for key in data:
                if type(key) is not str:
                    break
            else:
                return data
        msg = "data that is no dict of names"
        raise _Unacceptable(msg)

    def _decoded(self, text: bytes, most: int | None = None) -> object:
        limits = self._limits
        try:
            return values.decode(
                text, max_bytes=limits.result_bytes or 0, max_items=most or limits.result_items or 0
            )
        except values.ValueRefused as error:
            raise _Unacceptable(str(error)) from error

    def decode_off_loop(self, text: bytes, then: Callable[[object], None]) -> None:
        """Decodes on a pool thread. Nothing more is read of this child: what it said last decides."""
        self.busy = True
        self.close()
        post = self._ward.broker.post

        def decode() -> None:
            try:
                value = self._decoded(text)
            except _Unacceptable as error:
                why = str(error)
                post(lambda: self._decoding_done(lambda: self.poison(why)))
            except MemoryError:
                post(lambda: self._decoding_done(lambda: self._unable("no memory to decode its result")))
            else:
                post(lambda: self._decoding_done(lambda: then(value)))

        if not self._ward.pool.submit(decode):
            self.busy = False
            self._unable("no thread to decode its result on: see ulimit -u")

    def _decoding_done(self, tell: Callable[[], None]) -> None:
        self.busy = False
        if self._keeper.life.ending is None:  # else it could not be reaped, and that was told
            tell()
        self._keeper.settle()


class _Unacceptable(Exception):
    """A message that is typed well and yet not what may be said."""


def _weight(frame: bytes) -> int:
    """What its texts take in memory.

    One wide character makes all of its string wide, and a path keeps every part as a string.
    """
    if b'["P",' in frame:
        return 24 * len(frame)
    return len(frame) if frame.isascii() and b"\\u" not in frame else 4 * len(frame)


def _nothing_more(text: bytes) -> None:
    if text:
        msg = "a text behind a message that has none"
        raise _Unacceptable(msg)


_HANDLERS: Final[dict[type, tuple[Message, Callable[..., None]]]] = {
    messages.Ready: (Message.READY, Hearing._ready),  # noqa: SLF001
    messages.BootFailed: (Message.BOOT_FAILED, Hearing._boot_failed),  # noqa: SLF001
    messages.Event: (Message.EVENT, Hearing._event),  # noqa: SLF001
    messages.Ask: (Message.ASK, Hearing._ask),  # noqa: SLF001
    messages.SteerTaken: (Message.STEER_TAKEN, Hearing._steer_taken),  # noqa: SLF001
    messages.Chunk: (Message.CHUNK, Hearing._chunk),  # noqa: SLF001
    messages.Partial: (Message.PARTIAL, Hearing._partial),  # noqa: SLF001
    messages.Executing: (Message.EXECUTING, Hearing._executing),  # noqa: SLF001
    messages.Result: (Message.RESULT, Hearing._result),  # noqa: SLF001
    messages.Failure: (Message.FAILURE, Hearing._failure),  # noqa: SLF001
}

# The permission table by class: a look-up for every frame, without an Enum's slow hash.
_CLASSES: Final = {
    permitted: frozenset(cls for cls, (message, _) in _HANDLERS.items() if message in permitted)
    for permitted in set(states.PERMITTED.values())
}
