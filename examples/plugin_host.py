"""A host that runs plugins from a folder without importing a line of them.

    python examples/plugin_host.py [FOLDER] [--function NAME] [--argument TEXT]

Each *.py file of the folder is a plugin. Its path and the name of its function go to a child, which loads the
file and calls the function with one text. Each child has limits; the host prints one line per plugin: name,
state, classification, what came of it, milliseconds. Without FOLDER the plugins are those below, written to a
temporary folder: one that works and six that do what plugins do when they do not.

What this gives the host: a plugin that crashes, hangs, floods, exits or returns nonsense costs its own child
only, and nothing that it returns is unpickled. What it does NOT give: under profile `none`, the only one
there is yet, there is no kernel wall. A plugin has all the rights of the user who started the host: it can
read and delete files, use the network, and signal the host. Run only plugins that you would trust so far.

Exit code 0 means that every plugin was run and has a line, however it ended.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import textwrap
from pathlib import Path

import sandbox_exec as sx

MIB = 1 << 20
LIMITS = sx.Limits(
    wall_seconds=2.0, memory_bytes=512 * MIB, output_bytes=64 * 1024, result_bytes=MIB, grace_seconds=0.5
)
AT_ONCE = 4
MOST = 60
WIDTHS = (13, 12, 24, MOST)

PLUGINS = {
    "fine": """
        def run(text):
            return {"words": len(text.split()), "upper": text.upper()}
        """,
    "raises": """
        def run(text):
            raise ValueError(f"cannot make sense of {text!r}")
        """,
    "hangs": """
        import time

        def run(text):
            time.sleep(3600)
        """,
    "crashes": """
        import os, signal

        def run(text):
            os.kill(os.getpid(), signal.SIGSEGV)
        """,
    "floods": """
        def run(text):
            for _ in range(200):
                print(text * 10_000)
            return "done"
        """,
    "untravelling": """
        def run(text):
            return lambda: text
        """,
    "exits": """
        import sys

        def run(text):
            sys.exit(f"giving up on {text!r}")
        """,
}


def load_and_call(path: str, function: str, argument: str) -> object:
    """Runs in the child, the only place where a plugin's code is loaded."""
    import importlib.util  # in here: the host has no use for it
    import sys

    name = path.rpartition("/")[2].removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look there for it
    spec.loader.exec_module(module)
    return getattr(module, function)(argument)


def write_plugins(folder: Path) -> None:
    """Writes the plugins that this example brings along."""
    for name, text in PLUGINS.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")


def words(outcome: sx.Outcome) -> str:
    """The first words of what came of it; plugins are not to draw on our terminal, so printable ones."""
    said = outcome.error.message if outcome.error is not None else f"returned {outcome.value!r}"
    if outcome.stdout.dropped_bytes:
        kept = outcome.stdout.total_bytes - outcome.stdout.dropped_bytes
        said += f"; printed {outcome.stdout.total_bytes:,} bytes, kept {kept:,}"
    if outcome.exit.signal is not None and (name := signal.Signals(outcome.exit.signal).name) not in said:
        said += f" ({name})"
    said = "".join(letter if letter.isprintable() else " " for letter in said)
    return said if len(said) <= MOST else said[: MOST - 3] + "..."


def show(*cells: str) -> None:
    """One line of the table, at once."""
    padded = [cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False)]
    print("  ".join([*padded, cells[-1].rjust(5)]), flush=True)


def host(folder: Path, function: str, argument: str) -> int:
    """Runs every plugin of the folder, and returns how many there were."""
    files = sorted(folder.resolve().glob("*.py"))
    show("plugin", "state", "classified", "what came of it", "ms")
    with sx.SandboxExecutor(max_children=AT_ONCE) as executor:
        children = [
            executor.launch(load_and_call, (str(file), function, argument), limits=LIMITS, name=file.stem)
            for file in files
        ]
        for child in children:
            outcome = child.outcome()
            classified = outcome.error.classification if outcome.error is not None else "-"
            took = f"{outcome.usage.wall_seconds * 1000:.0f}"
            show(child.name, outcome.state.value, classified, words(outcome), took)
    imported = [file.stem for file in files if file.stem in sys.modules]
    print(f"{len(files)} plugins run; imported into this host: {', '.join(imported) or 'none'}.")
    return len(files)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="default: the plugins that come with this file")
    parser.add_argument("--function", default="run", metavar="NAME", help="what is called (default: run)")
    parser.add_argument("--argument", default="some words of text", metavar="TEXT", help="its argument")
    asked = parser.parse_args()
    if asked.folder is not None:
        return 0 if host(asked.folder, asked.function, asked.argument) else parser.error("no plugins there")
    with tempfile.TemporaryDirectory() as folder:
        write_plugins(Path(folder))
        host(Path(folder), asked.function, asked.argument)
    return 0


if __name__ == "__main__":
    sys.exit(main())
