"""Targets of attacks on the engine that once worked."""

import os
import socket
import sys
import time
from decimal import Decimal
from enum import Enum
from pathlib import Path

import sandbox_worker as sw


def hands_its_channel_over(path):
    """Gives its end of the channel to a sibling, which is not the child that the host then hears."""
    with socket.socket(socket.AF_UNIX) as connection:
        while connection.connect_ex(path):
            time.sleep(0.01)
        socket.send_fds(connection, [b"x"], [3])
    sw.context().emit("handed over")
    time.sleep(600)


def floods_what_it_is_given(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        sw.context().emit("listening")
        connection, _ = server.accept()
        with connection:
            _, fds, _, _ = socket.recv_fds(connection, 1, 1)
    frame = (
        b'{"t":"event","kind":"x"}\n' + b'["d",200]\n' + b"".join(b'"%d"\n["l",0]\n' % n for n in range(200))
    )
    sw.context().emit("flooding")
    while True:
        os.write(fds[0], frame)


def nested(places):
    sys.path += places  # a project in development mode is not on a child's path
    import sandbox_exec as sx

    with sx.SandboxExecutor() as executor:
        return executor.launch(len, ("abc",)).outcome(20).unwrap()


def floods_then_asks():
    """Does not read meanwhile, so that its host has to wait to write."""
    context = sw.context()
    context.emit("ready")
    time.sleep(0.5)
    for number in range(3_000):
        context.emit("flood", number=number)
    time.sleep(0.3)
    try:
        context.ask("absent")
    except sw.Denied:
        return "denied"


def dear_events_and_a_result(events, paths):
    data = [Path(f"/x/{number}") for number in range(paths)]
    for _ in range(events):
        sw.context().emit("dear", data=data)
    return events


def dear_event():
    """Two keys of equal hash that are dear to compare: 29 ms of the loop."""
    number = 10**40_000 + 1
    twin = Decimal(hash(number))
    assert hash(number) == hash(twin)
    sw.context().emit("dear", data={number, twin})


def half_characters(how):
    text = "\udcff" * 50_000
    if how == "raise":
        raise ValueError(text)
    if how == "exit":
        sys.exit(text)
    if how == "control":
        raise type("\U00010400" * 300, (Exception,), {})("\1" * 50_000)
    if how == "emit":
        sw.context().emit(text, data=text[:9])
    try:
        sw.context().ask(text)
    except sw.Denied:
        return "denied"


class Name(str, Enum):  # noqa: UP042 not a StrEnum: its text is another
    A = "a"


def odd_names():
    sw.context().emit("plain", **{Name.A: 1})
    sw.context().emit("text", **{Name.A: [1]})
