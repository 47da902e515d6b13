"""Ways to end: by return, exit, exception, signal, and by leaving without a word."""

import builtins
import ctypes
import logging
import os
import signal
import sys
import time

import sandbox_worker as sw


def give(value):
    return value


def leave(*code):
    sys.exit(*code)


def leave_at_once(code):
    os._exit(code)


def kill_self(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
    time.sleep(60)


def abort():
    os.abort()


def alarm():
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(60)


def read_address_zero():
    ctypes.string_at(0)


def become(*argv):
    os.execv(argv[0], argv)


def close_channel(then_sleep):
    """The descriptors that it was given are nobody's business but its own; all of them go."""
    os.closerange(3, 64)
    time.sleep(then_sleep)
    return 1


def say_partial(value, then, *args):
    sw.context().partial(value)
    sw.context().emit("said")
    return then(*args)


# Exceptions.


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}{b}")


class DeafText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class WrongText(Exception):
    def __str__(self):
        return 7  # noqa: PLE0307 on purpose


class LeavingText(Exception):
    def __str__(self):  # noqa: PLE0307 on purpose
        sys.exit(0)


class HostileMeta(type):
    def __getattribute__(cls, name):
        if name in {"__name__", "__qualname__", "__module__"}:
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class NamelessClass(Exception, metaclass=HostileMeta):
    pass


class HostileNumber(OSError):
    @property
    def errno(self):
        raise RuntimeError("no number")


class HostileEverything(Exception):
    def __getattribute__(self, name):
        raise RuntimeError("no")


class HostileCode(SystemExit):
    @property
    def code(self):
        raise RuntimeError("no code")


def throw_class(name, *args):
    raise globals()[name](*args)


def throw(error):
    raise error


def throw_bytes_path():
    os.stat(b"/nowhere/\xff\xfe")


def throw_surrogate():
    raise ValueError("half a character: \udcff")


def throw_long(characters):
    raise ValueError("x" * characters)


def throw_deep(depth):
    if depth:
        return throw_deep(depth - 1) + 1
    raise ValueError("the bottom")


def recurse_for_ever():
    return recurse_for_ever() + 1


def throw_chain(length):
    error = ValueError("the first")
    for _ in range(length):
        following = ValueError("x" * 100)
        following.__cause__ = error
        error = following
    raise error


def throw_long_name():
    raise type("N" * 10_000, (Exception,), {})("long")


def throw_hostile_name():
    raise type('A"\n}', (Exception,), {})("quotes")


# Values that cannot travel.


class Unpicklable:
    """If anything ever unpickled it, a file would tell."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (self.trace, "w")


def give_trap(trace):
    return [1, 2, 3, {"x": Unpicklable(trace)}]


def give_cycle():
    items = [1]
    items.append({"again": items})
    return items


def give_long(characters):
    return "A" * characters


def give_many(items):
    return [None] * items


# What it leaves behind.


def fork_and_return():
    """Both copies fall out of the target; only one of them is the child."""
    return "child" if os.fork() else "copy"


def fork_and(then, *args):
    """The copy ends in its own way."""
    if os.fork():
        time.sleep(0.3)
        return "child"
    return then(*args)


def fork_and_stay():
    if os.fork() == 0:
        time.sleep(600)
    return "child"


def echo_names(**given):
    return given


def log_and_print():
    return (logging.warning("x"), print("y"), 1)[-1]  # noqa: LOG015 the lock that everybody shares


def divide(a, b):
    return a / b


def wait_and_give(seconds, value):
    time.sleep(seconds)
    return value


def raise_builtin(name):
    cls = getattr(builtins, name)
    if issubclass(cls, UnicodeDecodeError):
        raise cls("utf-8", b"\xff", 0, 1, "no such byte")
    if issubclass(cls, UnicodeEncodeError):
        raise cls("ascii", "\xe9", 0, 1, "no such character")
    if issubclass(cls, BaseExceptionGroup):
        raise cls("several", [ValueError("one")])
    raise cls("of its own")


def raise_forged():
    """A class that has the name of a built-in one and is not."""
    raise type("ZeroDivisionError", (Exception,), {})("forged")
