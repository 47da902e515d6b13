"""Conventions are tests: style, types, imports, sizes, words. What they hold is set in pyproject.toml."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES = 400
PRODUCT = ("sandbox_exec", "worker", "profiles")


def tool(*argv, seconds=50):
    """Runs one of the development tools over the checkout; its own words are the failure's."""
    done = subprocess.run(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        command = " ".join(map(str, argv))
        pytest.fail(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)


def tree():
    """Every file of the project: what git knows or would add; without git, what an sdist unpacks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split("\0")
    if "pyproject.toml" not in listed:
        listed = []
        for folder, folders, files in os.walk(ROOT):
            folders[:] = [name for name in folders if name == ".ci" or not name.startswith((".", "__"))]
            listed += [str(Path(folder, name).relative_to(ROOT)) for name in files]
    return [path for name in listed if name and (path := ROOT / name).is_file()]


def product(suffix="", folders=PRODUCT):
    files = [path for path in tree() if path.relative_to(ROOT).parts[0] in folders]
    files = [path for path in files if path.name.endswith(suffix)]
    assert files, "the search found nothing to look at"
    return files


def matches(pattern, files):
    """Lines that match, as file:line: text."""
    found = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for number, line in enumerate(lines, 1)
            if re.search(pattern, line)
        ]
    return found


def test_ruff_finds_nothing():
    tool(sys.executable, "-m", "ruff", "check", "--no-fix", ".")


def test_ruff_would_format_nothing():
    tool(sys.executable, "-m", "ruff", "format", "--check", ".")


@pytest.mark.timeout(300)
def test_types_hold():
    tool(sys.executable, "-m", "mypy", seconds=290)


def test_import_contracts_are_kept():
    tool(Path(sysconfig.get_path("scripts"), "lint-imports"), "--no-logo", "--no-cache")


def test_the_protocol_imports_built_in_modules_only():
    # A test with a real worker reads sys.modules at Ready; this one says which line is to blame.
    source = (ROOT / "worker/sandbox_worker/protocol.py").read_text()
    imported = set()
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if ast.unparse(getattr(node, "test", node)) != "TYPE_CHECKING"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported <= set(sys.builtin_module_names)


def test_the_host_loads_of_the_worker_the_protocol_alone():
    # The contract reads import statements; the package's own __init__ runs whatever it holds.
    code = (
        "import pkgutil, sys, sandbox_exec\n"
        "for module in pkgutil.walk_packages(sandbox_exec.__path__, 'sandbox_exec.'):\n"
        "    module.name.endswith('__main__') or __import__(module.name)\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] == 'sandbox_worker'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"sandbox_worker", "sandbox_worker.protocol"}


def test_modules_stay_small():
    sizes = {path: len(path.read_text().splitlines()) for path in product(".py")}
    too_long = {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > MODULE_LINES}
    assert not too_long, f"over {MODULE_LINES} lines: two things live in one room"


def test_nothing_is_left_for_later():
    assert matches(r"\b(TODO|FIXME|XXX)\b|NotImplementedError|(?i:\bstub)", product()) == []


def test_the_host_loads_no_pickle():
    # What ruff bans, once more: here no comment on the line makes it pass.
    loaders = r"pickle\.(loads?|Unpickler)\b|marshal\.loads?\b|(?<![\w.])(eval|exec)\("
    assert matches(loaders, product(".py", ["sandbox_exec"])) == []


def test_deadlines_in_the_worker_are_monotonic():
    # Ruff's ban on time.time is the host's. Wall-clock time is for people; the host stamps what they read.
    assert matches(r"\btime\.time\b|from time import.*\btime\b", product(".py", ["worker"])) == []


def test_no_path_of_one_machine():
    # Only where a path begins: not after a name, a closing bracket, a dot or a tilde.
    begins, places = r"(?<![\w.~)}\]])", "home|root|work|Users"
    assert matches(f"{begins}/({places})/", tree()) == []


def test_ci_runs_the_readme_command():
    run = [ROOT / ".ci/run", "--show"]
    shown = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    readme = (ROOT / "README.md").read_text().splitlines()
    assert shown
    assert shown == [line for line in readme if line.endswith(".venv/bin/pytest")]
