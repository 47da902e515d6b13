"""Targets that tell how they were started."""

import os
import sys

NEIGHBOURS = "neighbours"


def modules(name):
    return name in sys.modules


def uses_a_neighbour(count):
    return f"{count} {NEIGHBOURS}"


def plain(more):
    return 40 + more


def referring(more):
    return plain(more)


class Callable:
    def __init__(self, base):
        self.base = base

    def __call__(self, more):
        return self.base + more


def factorial(number):
    return 1 if number < 2 else number * factorial(number - 1)


def with_defaults(a, b=2, *, c=3):
    return [a, b, c]


here = "here"


def looks_around():
    return globals()["here"]


def evaluates():
    return eval("here")


def descriptor_limit():
    import resource

    return list(resource.getrlimit(resource.RLIMIT_NOFILE))


def descriptors():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.stat(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
        found.append(int(name))
    return sorted(found)


def environment():
    return dict(os.environ)


def raises_our_word():
    class TIMEOUT(Exception):
        pass

    raise TIMEOUT("not the limit")


def prints(out, err):
    sys.stdout.write(out)
    sys.stderr.write(err)
    return 1


def uses_modules():
    import json

    import cloudpickle
    import msgspec

    return json.dumps(cloudpickle.loads(cloudpickle.dumps(msgspec.json.decode("[1]"))))


def reads_a_line():
    return input()


def reads_all():
    return sys.stdin.read()
