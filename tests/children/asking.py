"""Targets that ask their host."""

import threading
import time

import sandbox_worker as sw


def once(tool, args):
    return sw.context().ask(tool, **args)


def denied(tool):
    try:
        return sw.context().ask(tool)
    except sw.Denied as error:
        return f"denied: {error}"


def failing(tool):
    try:
        return sw.context().ask(tool)
    except sw.ToolFailed as error:
        return f"failed: {error}"


def from_threads(count):
    """Asks from so many threads at once; what each got."""
    got, start = [], threading.Barrier(count)

    def ask(number):
        start.wait()
        try:
            got.append(sw.context().ask("echo", number=number, pause=0.3)["number"])
        except sw.ToolFailed as error:
            got.append(str(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(map(str, got))


def in_turn(count):
    return [sw.context().ask("echo", number=number)["number"] for number in range(count)]


def long_one():
    """One long ask, then what was said meanwhile."""
    context = sw.context()
    context.emit("asking")
    context.ask("echo", pause=1.0)
    return context.boundary()


def ask_and_hear(tool):
    """What the tool answered, and what was said meanwhile."""
    context = sw.context()
    answer = context.ask(tool)
    return answer, context.boundary()


def too_many_values():
    try:
        sw.context().ask("echo", many=list(range(5_000)))
    except Exception as error:
        return type(error).__name__


def held():
    return sw.context().toolsets


def on_steer(tool):
    """Asks once it is told to."""
    context = sw.context()
    context.emit("asking")
    while not context.boundary():
        time.sleep(0.005)
    return denied(tool)


def each(tool, asked):
    """Asks with each of these arguments; what each got."""
    got = []
    for args in asked:
        try:
            got.append(sw.context().ask(tool, **args))
        except sw.Denied as error:
            got.append(f"denied: {error}")
    return got


def failing_often(tool, count):
    return [failing(tool) for _ in range(count)]


def recording(writer, count):
    """Has the host write so many records, and says of each what came of it."""
    context, told = sw.context(), []
    context.emit("recording")
    for number in range(count):
        try:
            context.ask("record", writer=writer, number=number)
            told.append((number, "kept"))
        except (sw.Denied, sw.ToolFailed) as error:
            told.append((number, f"failed: {error}"))
    return told
