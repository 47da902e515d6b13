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
            if text.endswith("?"):
                text = context.ask("echo", text=text)["text"]
            count += 1
            context.emit("pong", text=text)


def sleep():
    time.sleep(86_400)
