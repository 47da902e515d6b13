"""Children that mind their own business next to hostile ones."""

import select
import time

import sandbox_worker as sw
from sandbox_worker import protocol


def answer():
    """Emits every steer back, asking a host tool now and then; returns how many there were."""
    context, count = sw.context(), 0
    while True:
        select.select([protocol.CHANNEL_FD], [], [])
        for text in context.boundary():
            if text == "stop":
                return count
            count += 1
            asked = text.endswith("?")
            context.emit("pong", text=context.ask("echo", text=text)["text"] if asked else text)


def sleep():
    time.sleep(86_400)
