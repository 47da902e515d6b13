"""A copy of the worker that boots honestly or plays a script, as the host's limits tell it.

Everything else is as it is shipped: the launcher takes its worker from a folder, here from this one. The
number of the script travels in the one thing that a worker learns before it is Ready, the plan's
`result_items`; with the default there it is the real worker.
"""

import shutil
from pathlib import Path

import sandbox_worker.protocol
from sandbox_worker.protocol import DEFAULT_RESULT_ITEMS

TESTS = Path(__file__).parents[1]
MOST_SCRIPTS = DEFAULT_RESULT_ITEMS // 2  # the rest is room for values

_LAST_LINES = "\n\nmain()\n"
_EITHER = """


def either() -> None:
    frame = posix.read(3, 65_537)
    number = {items} - loads(frame)[2]["result_items"]
    if number:
        for name in ("", ".protocol"):
            load(PACKAGE + name)
        sys.path.append({tests!r})
        __import__("children.hostile", fromlist=("x",)).boot({seed}, number - 1, {kind!r})
    first, read = [frame], posix.read

    def again(fd, size):
        return first.pop() if fd == 3 and first else read(fd, size)

    posix.read = again
    main()


either()
"""


def make(folder: Path, seed: int, kind: str | None = None) -> str:
    """Copies the worker into `folder`; returns what the spawner has to take for its root."""
    package = Path(sandbox_worker.protocol.__file__).parent
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    boot = folder / package.name / "boot.py"
    text = boot.read_text(encoding="utf-8")
    assert text.endswith(_LAST_LINES), "boot.py no longer ends by calling main()"
    hook = _EITHER.format(items=DEFAULT_RESULT_ITEMS, tests=str(TESTS), seed=seed, kind=kind)
    boot.write_text(text.removesuffix(_LAST_LINES) + hook, encoding="utf-8")
    return str(folder)


def items(number: int) -> int:
    """The `result_items` that stand for a script."""
    return DEFAULT_RESULT_ITEMS - 1 - number
