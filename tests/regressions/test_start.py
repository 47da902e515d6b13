"""A child starts from whatever kind of program, on our own files, with nothing of the program's streams."""

import io
import json
import os
import subprocess
import sys

import pytest

from children import hosts, started, watch
from children.watch import SUCCEEDED, how, regression

TYPED = """import sandbox_exec as sx
def f(): return 1

USE
"""
USES = {
    "launch": "print(sx.SandboxExecutor(PROFILE).launch(f).outcome(20).value)",
    "submit": "print(sx.SandboxExecutor(PROFILE).submit(f).result(20))",
    "lambda": "print(sx.SandboxExecutor(PROFILE).launch(lambda: f()).outcome(20).value)",
    "map": "print(*sx.SandboxExecutor(PROFILE).map(lambda n: n + f(), [0]))",
}


def program(arguments, typed="", **options):
    options = {"env": hosts.environment(), **options}
    done = subprocess.run(
        [sys.executable, *arguments],
        input=typed, capture_output=True, text=True, timeout=40, check=False, **options
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", ["stdin", "interactive", "-c", "file", "exec"])
@regression("python/cpython#116403")
def test_a_function_is_sent_from_where_no_child_could_import_it(report, profile, tmp_path, place, use):
    text = TYPED.replace("USE", USES[use]).replace("PROFILE", repr(profile))
    match place:
        case "stdin":
            done = program(["-"], text)
        case "interactive":
            done = program(["-i", "-q"], text)
        case "-c":
            done = program(["-c", text])
        case "file":
            (tmp_path / "program.py").write_text(text)
            done = program([tmp_path / "program.py"])
        case "exec":
            done = program(["-c", f"exec({text!r}, {{'__name__': 'cell'}})"])
    assert done.stdout == "1\n"
    assert "Error" not in done.stderr


UNGUARDED = """
import mod
import sandbox_exec as sx
with open("runs", "a") as file:
    print("run", file=file)
BASE = 12
def own(n=0): return BASE + n
ex = sx.SandboxExecutor(PROFILE)
print(CALL)
"""
CALLS = {
    "of a module": ("ex.launch(mod.f).outcome(20).value", "1"),
    "of a module, that refers to it": ("ex.launch(mod.g).outcome(20).value", "2"),
    "its own": ("ex.launch(own).outcome(20).value", "12"),
    "submitted": ("ex.submit(mod.g).result(20)", "2"),
    "mapped": ("list(ex.map(own, range(3)))", "[12, 13, 14]"),
}


@pytest.mark.parametrize("call", CALLS)
@regression("microsoft/vscode-jupyter#13993")
def test_a_script_without_a_guard_runs_once(report, profile, tmp_path, call):
    expression, shown = CALLS[call]
    (tmp_path / "mod.py").write_text("LIMIT = 2\ndef f(): return 1\ndef g(): return LIMIT\n")
    text = UNGUARDED.replace("CALL", expression).replace("PROFILE", repr(profile))
    (tmp_path / "script.py").write_text(text)
    done = program(["script.py"], cwd=tmp_path)
    assert (done.stdout, done.stderr) == (f"{shown}\n", "")
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize("streams", ["text only", "no stdin", "none", "closed"])
@regression("pytest-dev/pytest#10154")
def test_the_hosts_streams_need_be_no_files(case, monkeypatch, streams):
    text = io.StringIO()
    given = {"text only": text, "no stdin": text, "none": None, "closed": io.StringIO()}[streams]
    if streams == "closed":
        given.close()
    monkeypatch.setattr(sys, "stdout", given)
    monkeypatch.setattr(sys, "stderr", given)
    if streams != "text only":
        monkeypatch.setattr(sys, "stdin", None)
    outcome = case.run(started.prints, ("out", "err"))
    assert (how(outcome), outcome.value) == (SUCCEEDED, 1)
    assert (outcome.stdout.text, outcome.stderr.text) == ("out", "err")
    assert how(case.sh("exit 0")) == SUCCEEDED
    monkeypatch.undo()
    assert text.getvalue() == ""


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
@regression("anthropics/claude-code#79175")
def test_input_ends_at_once_though_the_hosts_never_does(report, profile, tmp_path, kind):
    if kind == "pipe":
        with hosts.started("read_input", profile, tmp_path, stdin=-1) as (host, told):
            host.stdin.close()  # only now
    else:
        with hosts.on_a_terminal("read_input", profile, tmp_path) as terminal:
            told = json.loads(terminal.read_to_the_end().splitlines()[-1])
    assert told == {
        "cat": [*SUCCEEDED, None, ""],
        "shell": [*SUCCEEDED, None, "end\n"],
        "input": ["FAILED", "EOFError", None, ""],
        "read": [*SUCCEEDED, "", ""],
    }


@pytest.fixture
def trap(tmp_path):
    """A folder whose modules have the names of ours and of those that we use, and raise."""
    folder = tmp_path / "trap"
    folder.mkdir()
    bad = "raise RuntimeError('the wrong module')\n"
    for name in ("json", "os", "sitecustomize", "usercustomize", "evil", "marshal", "posix", "signal"):
        (folder / f"{name}.py").write_text(bad)
    for name in ("sandbox_worker", "msgspec", "cloudpickle", "encodings"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(bad)
    return folder


@pytest.mark.parametrize("way", ["the host's directory", "cwd", "environment", "command line"])
@regression("hanamorix/companion-emergence#138")
def test_a_module_in_the_directory_is_not_ours(case, monkeypatch, trap, way):
    startup = {"PYTHONSTARTUP": str(trap / "evil.py"), "PYTHONPATH": str(trap), "PYTHONHOME": str(trap)}
    match way:
        case "the host's directory":
            monkeypatch.chdir(trap)
            for name, value in startup.items():
                monkeypatch.setenv(name, value)
            options = {"cwd": None}
        case "cwd":
            options = {"cwd": trap}
        case "environment":
            options = {"cwd": trap, "env": startup}
        case "command line":
            sandboxed = os.path.join(os.path.dirname(sys.executable), "sandboxed")
            environment = {**os.environ, "PYTHONSTARTUP": startup["PYTHONSTARTUP"]}
            done = subprocess.run(
                [sandboxed, "call", "math:sqrt", "4"],
                cwd=trap, env=environment, capture_output=True, text=True, timeout=40, check=False,
            )  # fmt: skip
            assert (done.stdout, done.stderr) == ("2.0\n", "")
            return
    assert case.run(watch.ok, **options).value == 1
    outcome = case.run(started.uses_modules, **options)
    assert (how(outcome), outcome.value) == (SUCCEEDED, "[1]")
    base = 40
    by_value = case.run(lambda: base + 2, **options)
    assert (how(by_value), by_value.value) == (SUCCEEDED, 42)
    assert case.sh("exit 0", **options).exit.code == 0
