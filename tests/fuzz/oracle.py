"""A second reading of the protocol, on the standard library's JSON: what the host has to make of a script.

Where JSON leaves room (a key twice, 1.0 for an int, raw control characters) the oracle says "either".
Value texts are judged by the product's own decoder unless the script knows them to be foul: their rules
have tests of their own.
"""

import json
import re
import signal
import socket
from dataclasses import dataclass, field

from fuzz import scripts, wire
from fuzz.scripts import BOOTING, RUNNING, STOPPING
from sandbox_exec.engine import values
from sandbox_exec.engine.failures import RESERVED
from sandbox_worker.protocol import MAX_EVENT_ITEMS

VIOLATION = ("INTERRUPTED", "PROTOCOL_VIOLATION")
RESULT_BYTES, TOKEN_OVERHEAD = 4 << 20, 3
ASKS = 4

_LONG = (b'{"t":"chunk"', b'{"t":"partial"')
_WORDS = {"too_large": "RESULT_TOO_LARGE", "not_serializable": "RESULT_NOT_SERIALIZABLE"}

Ending = tuple[str, str | None]


@dataclass
class Expectation:
    endings: set[Ending]
    heard: int | None  # frames that the host must have taken up; None: that depends on who is quicker


class Foul(Exception):
    pass


class Either(Exception):
    pass


@dataclass
class Oracle:
    script: scripts.Script
    max_items: int
    phase: str = ""
    heard: int = 0
    unsure: bool = False
    deaf: bool = False  # the host listens no more
    doubt: bool = False
    racing: bool = False
    emptied: bool = False  # the host read nothing: a dead child's, if it was slow to look
    violated: bool = False
    cause: Ending | None = None
    verdict: Ending | None = None
    ending: Ending | None = None
    partial: bytes | None = None
    text: bytearray | None = None
    taken: set[int] = field(default_factory=set)
    stuck: int = 0
    executing: bool = False
    ran: bool = False
    hasty: bool = False  # it was Ready, and may be gone before the host has looked at it

    def judge(self) -> Expectation:
        self.phase = self.script.state if self.script.state == BOOTING else RUNNING
        self.ran = self.phase != BOOTING
        self.heard = int(self.ran)  # Ready
        for verb, *rest in self.script.steps:
            match verb:
                case "many":
                    self._many(rest[0])
                case "send":
                    self._send(rest[0])
                case "rights":
                    self._send(rest[0])
                case "run":
                    self.hasty = False
                case "strangers":
                    self._strangers(rest[0])
                case "stop":
                    self._send(scripts.GO)
                    self.phase = STOPPING if self.phase == RUNNING else self.phase
                case "deaf" | "ever":
                    self.racing = True
                case "shut":
                    self._shut(rest[0])
                case "close":
                    self._closed(lives_on=("linger",) in self.script.steps)
                case "exit" | "signal":
                    self._gone(verb, rest[0])
        if self.ending is None:
            self._gone("killed", signal.SIGKILL)
        endings = {self._conclude()}
        stays = self.script.steps[-1] == ("linger",) and ("close",) not in self.script.steps
        if self.emptied and self.violated and not stays:
            self.violated = False
            endings.add(self._conclude())
        if self.hasty:
            # Dead before it was looked at: then what it said after Ready came before Run.
            endings |= {("FAILED", "NOT_CONFINED"), ("FAILED", "LAUNCH_FAILED"), VIOLATION}
            self.racing = True
        if ("INTERRUPTED", "NO_RESULT") in endings and self.partial is not None:
            endings |= {VIOLATION}  # a foul partial result outranks a closed channel; it is read at the end
        if self.unsure:
            endings |= {VIOLATION, ("FAILED", "LAUNCH_FAILED")}
            self.racing = True
        if self.doubt:
            endings |= {VIOLATION}
        if self.script.early_cancel:
            endings |= {VIOLATION, ("CANCELLED", "CANCELLED")}
            endings |= {("FAILED", "LAUNCH_FAILED"), ("INTERRUPTED", "NO_RESULT")}
            self.racing = True
        if self.script.kind == "deaf":  # a host may end a child that reads nothing
            endings |= {VIOLATION}
        return Expectation(endings, None if self.doubt or self.racing else self.heard)

    # The channel.

    def _many(self, frames: list[bytes]) -> None:
        """Legal ones, if this is the time for them."""
        for frame in frames:
            talks = self.phase in {RUNNING, STOPPING} and not self.executing and not self.deaf
            if talks and self.text is None and self.stuck < ASKS and not frame.startswith(_LONG):
                self.heard += 1
            else:
                self._send(frame)

    def _send(self, frame: bytes) -> None:
        if self.deaf:
            return
        if not frame or len(frame) > wire.FRAME_BYTES:
            self.emptied |= not frame
            self._violate()
            return
        self.heard += 1
        self.racing |= self.phase in {"ABORTING", "FINISHED"}  # it is being ended meanwhile
        try:
            self._take(frame)
        except Foul:
            self._violate()
        except Either:
            self.doubt = True

    def _strangers(self, frame: bytes) -> None:
        if self.deaf:
            return
        if self.heard or self.phase != BOOTING:
            self._send(frame)
            return
        self.heard += 1
        self.phase, self.cause = "ABORTING", ("FAILED", "NOT_CONFINED")
        self.unsure = True  # a stranger that is gone before it is looked at is nobody: Ready never came

    def _shut(self, how: int) -> None:
        if how == socket.SHUT_WR and not self.deaf:
            self.emptied = True
            self._violate()
            if not self.script.lingers:
                self._gone("exit", 7)
        elif how == socket.SHUT_RDWR:
            self._closed(lives_on=self.script.lingers)
            if not self.script.lingers:  # its next word fails, and it ends
                self._gone("exit", 7)

    def _closed(self, *, lives_on: bool) -> None:
        if self.deaf:
            return
        self.deaf = True
        if lives_on and self.phase in {BOOTING, RUNNING} and not self.executing:
            self.cause = ("INTERRUPTED", "NO_RESULT") if self.ran else ("FAILED", "LAUNCH_FAILED")

    def _violate(self) -> None:
        self.deaf = True
        if self.cause is None or self.phase == STOPPING:
            self.violated = True

    # The frames.

    def _take(self, frame: bytes) -> None:
        fields, body = _fields(frame)
        tag = fields["t"]
        if self.phase in {BOOTING, "ABORTING"}:
            allowed = {"ready", "boot_failed"}
        elif self.phase == "FINISHED":
            allowed = set()
        elif self.executing:
            allowed = {"failure"}
        else:
            allowed = {"event", "ask", "steer_taken", "chunk", "partial", "executing", "result", "failure"}
        if tag not in allowed:
            raise Foul
        getattr(self, f"_{tag}")(fields, body)

    def _ready(self, fields: dict, body: bytes) -> None:
        _none(body)
        if self.phase == "ABORTING":
            return
        if fields["version"] != scripts.VERSION:
            self.phase, self.cause = "ABORTING", ("FAILED", "LAUNCH_FAILED")
        else:
            self.phase, self.ran, self.hasty = RUNNING, True, True

    def _boot_failed(self, _fields: dict, body: bytes) -> None:
        _none(body)
        if self.phase == BOOTING:
            self.phase, self.cause = "ABORTING", ("FAILED", "LAUNCH_FAILED")

    def _event(self, fields: dict, body: bytes) -> None:
        self._named(fields, body)

    def _ask(self, fields: dict, body: bytes) -> None:
        self._named(fields, body)
        if self.stuck >= ASKS:
            raise Foul
        if fields["tool"] == "stuck" and self.script.tools:
            self.stuck += 1

    def _steer_taken(self, fields: dict, body: bytes) -> None:
        _none(body)
        for number in fields["ids"]:
            if not 1 <= number <= self.script.steers or number in self.taken:
                raise Foul
            self.taken.add(number)

    def _chunk(self, _fields: dict, body: bytes) -> None:
        if not body:
            raise Foul
        self.text = (self.text or bytearray()) + body
        if len(self.text) > RESULT_BYTES + TOKEN_OVERHEAD * self.max_items:
            self.deaf, self.text = True, None
            if self.cause is None:
                self.cause = ("FAILED", "RESULT_TOO_LARGE")

    def _partial(self, _fields: dict, body: bytes) -> None:
        self.partial = self._whole(body)

    def _executing(self, _fields: dict, body: bytes) -> None:
        _none(body)
        if not self.script.command:
            raise Foul
        self.executing = True

    def _result(self, _fields: dict, body: bytes) -> None:
        if self.script.command:
            raise Foul
        whole = self._whole(body)
        self._value(whole)
        self._finish(("SUCCEEDED", None), closes=len(whole) > wire.FRAME_BYTES)

    def _failure(self, fields: dict, _body: bytes) -> None:
        kind = fields["kind"]
        name = fields["name"]
        word = _WORDS.get(kind, f"exception {fields['type_name']}" if name in RESERVED else name)
        if kind == "cancelled" and self.phase == STOPPING:
            self._finish(("CANCELLED", "CANCELLED"))
        else:
            self._finish(("FAILED", word))

    def _finish(self, verdict: Ending, *, closes: bool = False) -> None:
        self.verdict, self.phase = verdict, "FINISHED"
        self.deaf = self.deaf or closes

    def _whole(self, body: bytes) -> bytes:
        whole, self.text = bytes(self.text or b"") + body, None
        return whole

    def _named(self, fields: dict, body: bytes) -> None:
        if "plain" in fields:
            _none(body)
            return
        found = self._value(body, MAX_EVENT_ITEMS)
        if type(found) is not dict or any(type(key) is not str for key in found):
            raise Foul

    def _value(self, body: bytes, most: int = 0) -> object:
        if any(body.endswith(b'["d",1]\n"x"\n' + bad) or body == bad for bad in wire.BAD_TEXTS):
            raise Foul
        try:
            return values.decode(body, max_bytes=RESULT_BYTES, max_items=most or self.max_items)
        except values.ValueRefused:
            raise Foul from None

    # The end.

    def _gone(self, how: str, number: int) -> None:
        if self.ending is None:
            self.ending = (how, number)

    def _conclude(self) -> Ending:
        stopping = self.phase == STOPPING
        if self.verdict is not None:
            return self.verdict
        if not self.violated and self.partial is not None and (stopping or self.cause is None):
            try:
                self._value(self.partial)
            except Foul:
                self.violated = True
        if self.violated:
            return VIOLATION
        if stopping:
            return "CANCELLED", "CANCELLED"
        if self.cause is not None:
            return self.cause
        if not self.ran:
            return "FAILED", "LAUNCH_FAILED"
        how, number = self.ending
        if how == "exit" and self.executing:
            return ("SUCCEEDED", None) if number == 0 else ("FAILED", "EXIT_CODE")
        return "INTERRUPTED", "NO_RESULT" if how in {"exit", "killed"} else "SIGNAL"


def _none(body: bytes) -> None:
    if body:
        raise Foul


# The header.

_FIELDS = {
    "ready": {"version": "count"},
    "boot_failed": {"why": "name"},
    "event": {"kind": "name"},
    "ask": {"id": "count", "tool": "name"},
    "steer_taken": {"ids": "ids"},
    "chunk": {},
    "partial": {},
    "executing": {},
    "result": {},
    "failure": {"kind": "kind", "name": "name", "type_name": "name", "message": "message", "errno": "errno"},
}
_FAILURES = re.compile(r"(raised|exit|cancelled|too_large|not_serializable)\Z")


def _fields(frame: bytes) -> tuple[dict, bytes]:
    header, newline, body = frame.partition(b"\n")
    if not newline:
        raise Foul
    twice = []

    def pairs(found):
        made = dict(found)
        twice.append(len(made) != len(found))
        return made

    try:
        text = header.decode("utf-8")
        fields = json.loads(text, object_pairs_hook=pairs, parse_constant=_refuse, parse_int=_integer)
    except (ValueError, RecursionError):
        if re.search(rb"[\0-\x1f]", header):
            raise Either from None
        raise Foul from None
    if type(fields) is not dict:
        raise Foul
    if any(twice):
        raise Either
    tag = fields.get("t")
    plain = {"plain"} if type(tag) is str and tag in {"event", "ask"} else set()
    if type(tag) is not str or tag not in _FIELDS or set(fields) - {"t"} - plain != set(_FIELDS[tag]):
        raise Foul
    if plain & set(fields):
        _check_plain(fields["plain"])
    for name, kind in _FIELDS[tag].items():
        _check(kind, fields[name])
    return fields, body


def _refuse(_constant: str) -> object:
    raise ValueError


def _integer(text: str) -> int:
    return int(text) if len(text) < 30 else 1 << 90


def _check_plain(data: object) -> None:
    if type(data) is not dict or len(data) > (MAX_EVENT_ITEMS - 1) // 2:
        raise Foul
    for item in (*data, *data.values()):
        if type(item) is float and item - item != 0:
            raise Either  # beyond what a float holds
        if type(item) is int and not -(1 << 63) <= item < 1 << 63:
            raise Foul
        if type(item) in {list, dict} or (type(item) is str and re.search("[\ud800-\udfff]", item)):
            raise Foul


def _check(kind: str, value: object) -> None:
    if kind == "ids":
        if type(value) is not list or not 1 <= len(value) <= 64:
            raise Foul
        for item in value:
            _check("count", item)
    elif kind in {"count", "errno"}:
        if type(value) is float and value.is_integer():
            raise Either
        if type(value) is not int or not 0 <= value < (1 << 53 if kind == "count" else 1 << 16):
            raise Foul
    else:
        most = 4_000 if kind == "message" else wire.MAX_NAME
        if type(value) is not str or len(value) > most or re.search("[\ud800-\udfff]", value):
            raise Foul
        if kind == "kind" and not _FAILURES.match(value):
            raise Foul
