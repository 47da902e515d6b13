"""What one hostile child does, from a seed and a number: a valid beginning, something foul, an end.

Both sides make the same script: the child plays it, the host holds its own reading of the protocol
(oracle.py) against what the engine made of it. A script is a list of steps, (verb, ...):

    many frames     sends legal frames, and meanwhile throws away what the host says
    send frame      sends one frame
    rights frame n  sends one frame with n descriptors attached
    strangers frame a process that the child forks sends it
    run             waits for Run (only a child that boots by itself)
    steers n        waits for n steers
    stop            says "go" and waits for Cancel
    deaf            does not read on; sends what the socket takes within a moment
    shut how        shutdown(2) of the channel
    close           closes the channel
    exit code, signal number, linger    the end
"""

import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random

from fuzz import wire

BOOTING, RUNNING, STOPPING = "BOOTING", "RUNNING", "STOPPING"
STATES = (BOOTING, RUNNING, STOPPING)
STEERS = 5
VERSION = 1
GO = wire.frame(wire.head("event", kind="go"), b'["d",0]\n')

Step = tuple[object, ...]
Steps = list[Step]


@dataclass
class Script:
    number: int
    state: str
    kind: str = ""
    command: bool = False  # the host believes that it launched a program
    steers: int = 0  # how many the host sends before Run
    tools: bool = False  # the host grants tools
    bounded: bool = False  # the host has limits to prepare between Ready and Run
    early_cancel: bool = False  # the host cancels at once
    ladder: bool = False  # the child goes on until it is killed
    lingers: bool = False  # once its channel is closed on it, it waits to be killed
    steps: Steps = field(default_factory=list)


def script(seed: int, number: int, state: str | None = None, kind: str | None = None) -> Script:
    """The script of this number. The state goes round, and so do the kinds: each once, then by their lots."""
    rng = Random(f"{seed} {number}")
    made = Script(number, state or STATES[number % len(STATES)])
    order = _order(seed, made.state)
    made.kind = kind or order[number // len(STATES) % len(order)]
    made.lingers = rng.random() < 0.3
    _KINDS[made.kind][0](rng, made)
    return made


_KINDS: dict[str, tuple[Callable[[Random, Script], None], tuple[str, ...]]] = {}
_LOTS: dict[str, list[str]] = {state: [] for state in STATES}


def kinds(state: str) -> list[str]:
    return list(dict.fromkeys(_LOTS[state]))


@cache
def _order(seed: int, state: str) -> list[str]:
    lots = list(_LOTS[state])
    Random(f"{seed} {state}").shuffle(lots)
    once = list(dict.fromkeys(lots))
    for kind in once:
        lots.remove(kind)
    return once + lots


def _kind(*states: str, lots: int = 2):
    def register(make):
        named = make.__name__
        _KINDS[named] = make, states
        for state in states:
            _LOTS[state] += [named] * lots
        return make

    return register


TALKING = (RUNNING, STOPPING)


# The valid beginning.


def _begin(rng: Random, made: Script) -> list[list[bytes]]:
    """Everything up to the foul part. Returns units of legal frames to go on with."""
    units = wire.talk(rng)
    if made.state == BOOTING:
        return units
    if not made.steers and rng.random() < 0.2:
        made.steers = STEERS
        made.steps.append(("steers", STEERS))
        made.steps.append(("send", wire.steer_taken([1])))
    if made.state == STOPPING:
        made.steps += [("many", _some(rng, units, rng.randrange(40))), ("stop",)]
    made.steps.append(("many", _some(rng, units, _length(rng))))
    return units


def _length(rng: Random) -> int:
    return rng.randrange(20) if rng.random() < 0.4 else rng.randrange(200, 4_000)


def _some(rng: Random, units: list[list[bytes]], count: int) -> list[bytes]:
    return [frame for unit in rng.choices(units, k=count) for frame in unit]


def _end(rng: Random, made: Script, units: list[list[bytes]]) -> None:
    """What follows the foul part, if the host still listens."""
    made.steps.append(("many", _some(rng, units, rng.choice([0, 1, 30]))))
    how = rng.randrange(8)
    if how == 0:
        made.steps.append(("signal", rng.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM]).value))
    elif how == 1 and made.state == RUNNING:
        made.steps += [("close",), ("linger",)]
    else:
        made.steps.append(("exit", rng.choice([0, 1, 112, 255])))


def _foul(rng: Random, made: Script, *steps: Step) -> None:
    """A valid beginning, these steps, an end."""
    units = _begin(rng, made)
    made.steps += steps
    _end(rng, made, units)


# Kinds that fit a child in every state.


@_kind(*STATES, lots=3)
def garbage(rng, made):
    _foul(rng, made, ("send", rng.choice(wire.GARBAGE)))


@_kind(*STATES)
def noise(rng, made):
    _foul(rng, made, ("send", rng.randbytes(rng.choice([1, 2, 30, 1000, wire.FRAME_BYTES]))))


@_kind(*STATES)
def empty(rng, made):
    if rng.random() < 0.5:
        _foul(rng, made, ("send", b""))
    else:
        _begin(rng, made)
        made.steps += [("send", b""), ("linger",)]


@_kind(*STATES)
def oversize(rng, made):
    whole = wire.frame(wire.head("event", kind="x"), wire.named(rng))
    size = wire.FRAME_BYTES + rng.choice([1, 2, 100, 60_000, 140_000])
    _foul(rng, made, ("send", whole + b" " * (size - len(whole))))


@_kind(*STATES, lots=4)
def flipped(rng, made):
    _foul(rng, made, *(("send", wire.flipped(rng, _any_frame(rng, made))) for _ in range(rng.choice([1, 5]))))


@_kind(*STATES, lots=3)
def truncated(rng, made):
    _foul(rng, made, ("send", wire.cut(rng, _any_frame(rng, made))))


@_kind(*STATES, lots=3)
def spliced(rng, made):
    _foul(rng, made, ("send", wire.spliced(rng, _any_frame(rng, made), _any_frame(rng, made))))


@_kind(*STATES, lots=3)
def reworded(rng, made):
    _foul(rng, made, ("send", wire.reworded(rng, _any_frame(rng, made))))


@_kind(*STATES)
def doubled(rng, made):
    one = _any_frame(rng, made)
    _foul(rng, made, ("send", one), ("send", one))


@_kind(*STATES)
def unasked(rng, made):
    """A message of another phase."""
    if made.state == BOOTING:
        others = [
            wire.event(rng),
            wire.ask(rng),
            wire.result(b"0\n"),
            wire.failure(rng),
            wire.steer_taken([1]),
        ]
        others += [wire.frame(wire.head(tag), b"0\n") for tag in ("chunk", "partial")]
        others += [wire.frame(wire.head("executing"))]
    else:
        others = [_ready(), _ready(VERSION + 1), wire.frame(wire.head("boot_failed", why="no"))]
    _foul(rng, made, ("send", rng.choice(others)))


@_kind(*STATES)
def extra_field(rng, made):
    header, _, body = _any_frame(rng, made).partition(b"\n")
    more = rng.choice([b'"x":1', b'"pid":1', b'"T":"event"', b'"":null', b'"__class__":"x"', b'"kind ":"x"'])
    _foul(rng, made, ("send", wire.frame(header.rstrip()[:-1] + b"," + more + b"}", body)))


@_kind(*STATES, lots=1)
def silence(rng, made):
    """Nothing foul at all: it just ends."""
    _foul(rng, made)


@_kind(*STATES, lots=1)
def shut(rng, made):
    hows = [socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR]
    made.lingers = made.lingers and made.state != STOPPING  # the whole ladder would have to be climbed
    _foul(rng, made, ("shut", rng.choice(hows)), ("send", _any_frame(rng, made)))


@_kind(*STATES)
def rights(rng, made):
    _foul(
        rng,
        made,
        *(("rights", _any_frame(rng, made), rng.choice([1, 3, 60])) for _ in range(rng.choice([1, 20]))),
    )


def _any_frame(rng: Random, made: Script) -> bytes:
    if made.state == BOOTING:
        return rng.choice([_ready(), wire.frame(wire.head("boot_failed", why=wire.name(rng)))])
    makers = [wire.event, wire.ask, lambda rng: wire.frame(wire.head("partial"), wire.text(rng))]
    makers += [
        lambda rng: wire.result(wire.text(rng)),
        wire.failure,
        lambda _: wire.steer_taken([rng.randrange(3)]),
    ]
    makers += [lambda rng: wire.frame(wire.head("chunk"), b"0"), lambda _: wire.frame(wire.head("executing"))]
    return rng.choices(makers, weights=[8, 3, 3, 2, 2, 1, 1, 1])[0](rng)


def _ready(version: int = VERSION) -> bytes:
    return wire.frame(wire.head("ready", version=version))


# Of a child that is not Ready.


@_kind(BOOTING)
def other_version(rng, made):
    made.steps += [("send", _ready(rng.choice([0, 2, (1 << 53) - 1])))]
    made.steps += [("send", _ready())] * rng.choice([0, 1, 200])
    _foul(rng, made)


@_kind(BOOTING)
def given_up_and_ready(rng, made):
    """Ready, again and again, of a child that is being killed."""
    made.steps += [("send", wire.frame(wire.head("boot_failed", why="no")))]
    made.steps += [("send", _ready())] * rng.choice([1, 20, 250])
    _foul(rng, made)


@_kind(BOOTING)
def ready_again(rng, made):
    """Ready while the host looks at it, or prepares its limits."""
    made.bounded = rng.random() < 0.7
    made.steps += [("send", _ready())] * rng.choice([2, 3, 200])
    made.steps.append(("linger",))


@_kind(BOOTING, lots=1)
def strangers_ready(rng, made):
    """Another process than the worker says Ready."""
    _foul(rng, made, ("strangers", _ready()))


@_kind(BOOTING, lots=3)
def ready_and_on(rng, made):
    """Ready, and on: after Run, or straight on without waiting for it."""
    made.steps += rng.choice([[("send", _ready())], [("send", _ready()), ("run",)]])
    made.bounded = ("run",) in made.steps and rng.random() < 0.3
    units = wire.talk(rng)
    made.steps += [("many", _some(rng, units, _length(rng)))]
    made.steps += [("send", rng.choice([rng.choice(wire.GARBAGE), _ready(), wire.result(b"0\n"), b""]))]
    _end(rng, made, units)


@_kind(BOOTING, lots=1)
def cancelled_early(rng, made):
    """Cancelled while it boots, and it talks on."""
    made.early_cancel = True
    made.steps += [("send", _ready())] if rng.random() < 0.5 else []
    made.steps += [("many", _some(rng, wire.talk(rng), 200))]
    _foul(rng, made, ("send", rng.choice(wire.GARBAGE)))


@_kind(BOOTING)
def becomes_program(rng, made):
    """What the host takes for a command: after `executing` nothing but a failure may come."""
    made.command = True
    units = wire.talk(rng)
    made.steps += [("send", _ready()), ("run",), ("many", _some(rng, units, rng.choice([0, 3, 500])))]
    executing = wire.frame(wire.head("executing"))
    made.steps += rng.choice(
        [
            [("send", executing), ("send", wire.failure(rng))],
            [("send", executing), ("send", executing)],
            [("send", executing), ("send", wire.event(rng))],
            [("send", executing), ("send", wire.result(b"0\n"))],
            [("send", executing), ("close",)],
            [("send", executing)],
            [("send", wire.result(b"0\n"))],
            [("send", wire.failure(rng)), ("send", executing)],
        ]
    )
    made.steps.append(rng.choice([("exit", 0), ("exit", 3), ("signal", signal.SIGTERM.value)]))


# Of a child that runs.


@_kind(*TALKING, lots=4)
def bad_text(rng, made):
    body = rng.choice(wire.BAD_TEXTS)
    nested = b'["d",1]\n"x"\n' + body
    whole = rng.choice(
        [
            wire.frame(wire.head("event", kind="x"), rng.choice([body, nested])),
            wire.frame(wire.head("ask", id=1, tool="x"), rng.choice([body, nested])),
            wire.result(body),
            wire.frame(wire.head("partial"), body),
        ]
    )
    _foul(rng, made, ("send", whole[: wire.FRAME_BYTES]))


@_kind(*TALKING)
def not_named(rng, made):
    body = rng.choice(
        [wire.text(rng), b"null\n", b'["l",0]\n', b'["d",1]\n1\n2\n', b'["d",1]\n["b","eA=="]\n0\n']
    )
    _foul(
        rng,
        made,
        (
            "send",
            wire.frame(rng.choice([wire.head("event", kind="x"), wire.head("ask", id=1, tool="x")]), body),
        ),
    )


@_kind(*TALKING)
def body_too_many(rng, made):
    """A text behind a message that has none."""
    header = rng.choice([wire.head("executing"), wire.head("steer_taken", ids=[2])])
    made.steers = STEERS
    made.steps.append(("steers", STEERS))
    _foul(rng, made, ("send", wire.frame(header, rng.choice([b"0\n", b"\n", b"\0"]))))


@_kind(*TALKING)
def forged_steers(rng, made):
    made.steers = STEERS if rng.random() < 0.8 else 0
    if made.steers:
        made.steps += [("steers", STEERS)]
    ids = [
        [],
        [0],
        [STEERS + 1],
        [1, 1],
        [2, 3, 2],
        [1 << 52],
        [5, 4, 3, 2, 1, 0],
        [2, 3],
        [-1],
        list(range(1, 66)),
    ]
    _foul(rng, made, *(("send", wire.steer_taken(rng.choice(ids))) for _ in range(rng.choice([1, 3]))))


@_kind(*TALKING)
def programless(rng, made):
    """A callable that says it becomes a command."""
    _foul(rng, made, ("send", wire.frame(wire.head("executing"))))


@_kind(*TALKING)
def verdicts(rng, made):
    """More than one verdict, or something after it."""
    one, two = rng.choices(
        [wire.result(wire.text(rng)), wire.failure(rng), wire.failure(rng, "cancelled")], k=2
    )
    more = rng.choice(
        [two, wire.event(rng), b"", rng.choice(wire.GARBAGE), wire.frame(wire.head("executing"))]
    )
    units = _begin(rng, made)
    made.steps += [("send", one), ("send", more), ("many", _some(rng, units, 5))]
    made.steps.append(rng.choice([("exit", 0), ("exit", 9), ("signal", signal.SIGSEGV.value), ("linger",)]))


@_kind(*TALKING)
def chunks(rng, made):
    body = wire.text(rng)
    whole = wire.in_chunks(rng, rng.choice(["result", "partial"]), body)
    rng.choice([lambda: None, lambda: rng.shuffle(whole), whole.pop, lambda: whole.insert(0, whole[0])])()
    _foul(rng, made, *(("send", one) for one in whole))


@_kind(*TALKING)
def chunk_flood(rng, made):
    """More text than a result may have."""
    size = rng.choice([wire.FRAME_BYTES - 14, 30_000])
    piece = wire.frame(wire.head("chunk"), (b"0\n" * wire.FRAME_BYTES)[:size])
    _foul(rng, made, *[("send", piece)] * rng.choice([40, 400]))


@_kind(*TALKING, lots=1)
def long_result(rng, made):
    """Texts near the bounds, decoded off the loop."""
    pieces = {
        "text": b'"' + b"x" * 60_000 + b'"\n',
        "lists": b'["l",0]\n',
        "sets": b'["S",0]\n',
        "ints": b"1\n",
    }
    piece = pieces[rng.choice(list(pieces))]
    most = min((1 << 18) - 1, (4 << 20) // len(piece))
    count = rng.choice([most // 4, most // 2, most])
    stated = rng.choice([count, count, count - 1, count + 1, 1 << 62])
    body = b'["l",%d]\n' % stated + piece * count
    step = 65_000
    frames = [wire.frame(wire.head("chunk"), body[at : at + step]) for at in range(0, len(body), step)]
    frames.append(wire.frame(wire.head(rng.choice(["result", "partial"]))))
    _foul(rng, made, *(("send", one) for one in frames))


@_kind(*TALKING)
def too_many_asks(rng, made):
    made.tools = True
    stuck = wire.frame(wire.head("ask", id=1, tool="stuck"), b'["d",0]\n')
    _foul(rng, made, *[("send", stuck)] * rng.choice([4, 5, 6, 40]))


@_kind(*TALKING)
def tools(rng, made):
    """Asks that are granted, with arguments of every kind."""
    made.tools = True
    asks = [wire.ask(rng, rng.choice(["echo", "fails", "Echo", ""])) for _ in range(3)]
    _foul(rng, made, ("many", asks), ("send", rng.choice(wire.GARBAGE)))


@_kind(*TALKING)
def deaf(rng, made):
    """It asks and asks, and reads no answer."""
    made.tools = rng.random() < 0.5
    _begin(rng, made)
    made.steps += [("deaf", [wire.ask(rng, "absent") for _ in range(8)])]
    made.steps += rng.choice([[], [("shut", socket.SHUT_RD)], [("shut", socket.SHUT_RDWR)], [("close",)]])
    made.steps.append(("exit", 0))


@_kind(STOPPING, lots=1)
def ladder(rng, made):
    """It ignores Cancel and SIGTERM, and talks until it is killed."""
    made.ladder = True
    units = wire.talk(rng)
    made.steps += [("many", _some(rng, units, 20)), ("stop",)]
    made.steps += [("many", _some(rng, units, 2_000)), ("ever", _some(rng, units, 50))]


@_kind(RUNNING, lots=3)
def long_talk(rng, made):
    """Thousands of legal frames, and then one that is not."""
    units = wire.talk(rng)
    made.steps.append(("many", _some(rng, units, rng.randrange(4_000, 12_000))))
    made.steps.append(("send", rng.choice(wire.GARBAGE)))
    _end(rng, made, units)
