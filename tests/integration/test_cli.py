"""`sandboxed` and the example, run as people run them: real processes, their streams and exit codes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import psutil
import pytest

import sandbox_exec as sx
from sandbox_exec import cli

ROOT = Path(__file__).parents[2]
SANDBOXED = Path(sysconfig.get_path("scripts"), "sandboxed")
SURVEY = [sys.executable, ROOT / "examples/survey.py"]

MODULE = """
import datetime, decimal, os, pathlib, sys, time, uuid

def echo(*args): return list(args)
def give(text): return eval(text)
def noisy():
    print("to \\x1b[31mstdout")
    print("to stderr", file=sys.stderr)
    return 1
def fail(text): raise ValueError(text)
def named(name): raise type(name, (Exception,), {})("forged")
def die(number): os.kill(os.getpid(), number)
def loaded(): return [name for name in sys.modules if name.partition(".")[0] in {"sandbox_exec", "click"}]
def wait():
    pathlib.Path("started").touch()
    try:
        time.sleep(60)
    finally:
        pathlib.Path("cleaned").touch()
def endure():
    pathlib.Path("started").touch()
    while True:
        try: time.sleep(60)
        except BaseException: pass
pathlib.Path(f"imported-by-{os.getppid()}").touch()
"""


def words_of(value):
    return " ".join(map(str, value))[:40] if isinstance(value, list) else ""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def sandboxed(folder):
    def run(*argv, **options):
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "cwd": folder,
        } | options
        return subprocess.run(
            [SANDBOXED, *argv], stdin=subprocess.DEVNULL, timeout=40, check=False, **options
        )

    return run


def heeds_interrupts():
    # What a shell starts in the background ignores them, and so does all that it starts in turn.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def started(folder):
    """Starts `sandboxed`, and returns once its child works."""
    running = []

    def start(*argv):
        process = subprocess.Popen(
            [SANDBOXED, *argv],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heeds_interrupts,  # noqa: PLW1509 there is one thread
        )
        running.append(process)
        wait_until(lambda: (folder / "started").exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stderr.close()


def wait_until(happened, seconds=20):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running_with(argument):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if argument in process.cmdline():
                found.append(process)
    return found


# Help ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv", [["--help"], ["call", "-h"], ["exec", "--help"], ["--version"]], ids=" ".join
)
def test_help_does_not_import_the_engine(argv):
    code = (
        "import sys; from sandbox_exec.cli import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    modules = done.stderr.split()
    assert "sandbox_exec.cli.exec" in modules
    heavy = ("sandbox_exec.engine", "sandbox_exec.executor", "sandbox_exec.confinement", "msgspec", "rich")
    assert [name for name in modules if name.startswith(heavy)] == []
    assert "sandboxed" in done.stdout


@pytest.mark.parametrize("command", ["call", "exec"])
def test_help_has_examples_and_every_limit(sandboxed, command):
    text = sandboxed(command, "--help").stdout
    assert f"Examples:\n    sandboxed {command} " in text
    for field in sx.Limits.__slots__:
        stem = field.removesuffix("_seconds").removesuffix("_bytes").replace("_", "-")
        assert f"--{stem} " in text


def test_version(sandboxed):
    assert sandboxed("--version").stdout == f"sandboxed {sx.__version__}\n"


# call ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["math:sqrt", "2"], 2**0.5),
        (["operator:neg", "-5"], 5),  # not an option
        (["os.path:join", '"a"', '"b"'], "a/b"),
        (
            ["mine:echo", "null", "true", "1.5", '"ä"', "[]", '{"a": [1]}'],
            [None, True, 1.5, "ä", [], {"a": [1]}],
        ),
        (["mine:loaded"], []),
        (["datetime:date.fromisoformat", '"2026-01-31"'], {"$date": "2026-01-31"}),
    ],
    ids=words_of,
)
def test_call_prints_the_value(sandboxed, argv, value):
    done = sandboxed("call", *argv)
    assert (done.returncode, json.loads(done.stdout)) == (0, value), done.stderr


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("(1, (2,))", [1, [2]]),
        ("-0.0", -0.0),
        ("float('nan')", {"$float": "nan"}),
        ("-float('inf')", {"$float": "-inf"}),
        ("10**4000", 10**4000),
        ("16**5000", {"$int": "0x1" + "0" * 5000}),
        ("'\\udcff\\x1b\\n'", "\udcff\x1b\n"),
        ("b'hi'", {"$bytes": "aGk="}),
        ("{3, 1, 2}", {"$set": [1, 2, 3]}),
        ("frozenset({'b', 'a'})", {"$frozenset": ["a", "b"]}),
        ("{1: b''}", {"$dict": [[1, {"$bytes": ""}]]}),
        ("{'$set': []}", {"$dict": [["$set", []]]}),
        ("{'$set': [], 'x': 1}", {"$set": [], "x": 1}),
        ("decimal.Decimal('1.10')", {"$decimal": "1.10"}),
        ("uuid.UUID(int=1)", {"$uuid": "00000000-0000-0000-0000-000000000001"}),
        ("pathlib.Path('/x')", {"$path": "/x"}),
        ("datetime.time(1, 2)", {"$time": "01:02:00"}),
        (
            "datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)",
            {"$datetime": "2026-01-02T00:00:00+00:00"},
        ),
        ("datetime.timedelta(1.5)", {"$timedelta": [1, 43200, 0]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_json_lacks_has_a_form(sandboxed, value, form):
    done = sandboxed("call", "mine:give", json.dumps(value))
    assert repr(json.loads(done.stdout)) == repr(form)
    assert done.stdout.isascii()


def test_call_keeps_the_value_apart_from_what_is_printed(sandboxed):
    done = sandboxed("call", "mine:noisy")
    assert done.stdout == "1\n"
    assert done.stderr == "to \\x1b[31mstdout\nto stderr\n"


def test_the_module_is_imported_in_the_child_alone(sandboxed, folder):
    assert sandboxed("call", "mine:echo").returncode == 0
    (importer,) = folder.glob("imported-by-*")
    assert importer.name != f"imported-by-{os.getpid()}"  # as it would be, were it `sandboxed` itself


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["mine:fail", '"why\\u001b"'], 1, "\nValueError: why\\x1b\n"),
        (["mine:named", '"TIMEOUT"'], 1, "TIMEOUT: forged"),
        (["mine:named", '"EXIT_CODE"'], 1, "EXIT_CODE: forged"),
        (["mine:missing"], 1, "has no attribute 'missing'"),
        (["sys:exit", "3"], 1, "SystemExit: 3"),
        (["os:_exit", "3"], 1, "INTERRUPTED, NO_RESULT: the process ended (exit code 3) without a result"),
        (
            ["builtins:object"],
            1,
            "RESULT_NOT_SERIALIZABLE: at the top: objects of type builtins.object cannot travel",
        ),
        (["mine:die", "11"], 139, "INTERRUPTED, SIGNAL: the process was ended by SIGSEGV"),
        (
            ["--wall", "300ms", "time:sleep", "60"],
            124,
            "FAILED, TIMEOUT: the wall limit of 0.3 s was reached",
        ),
        (["--memory", "300M", "mine:give", '"bytes(10**10)"'], 1, "MEMORY_LIMIT: memory_bytes=314,572,800"),
        (["--open-files", "10", "mine:give", "\"[open('mine.py') for _ in range(20)]\""], 1, "FILE_LIMIT"),
        (["--result", "1K", "mine:give", '"bytes(2000)"'], 1, "RESULT_TOO_LARGE"),
        (["--result-items", "10", "mine:give", '"[1] * 20"'], 1, "RESULT_TOO_LARGE"),
    ],
    ids=words_of,
)
def test_call_that_fails(sandboxed, argv, code, words):
    done = sandboxed("call", *argv)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert done.stderr.endswith("\n")


# exec ------------------------------------------------------------------------------------------------


def test_exec_passes_streams_and_exit_code_on(sandboxed):
    done = sandboxed("exec", "--", "sh", "-c", "printf 'a\\377\\033[1m'; printf b >&2; exit 255", text=False)
    assert (done.returncode, done.stdout, done.stderr) == (255, b"a\xff\x1b[1m", b"b")


def test_exec_leaves_the_arguments_alone(sandboxed, folder):
    done = sandboxed("exec", "printf", "%s,", "--json", "-h", "--", "a b", "*")
    assert (done.returncode, done.stdout) == (0, "--json,-h,--,a b,*,")
    assert sandboxed("exec", "pwd").stdout == f"{folder}\n"
    assert sandboxed("exec", "cat").stdout == ""


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["sh", "-c", "kill -TERM $$"], 143, "INTERRUPTED, SIGNAL: the process was ended by SIGTERM"),
        (["--wall", "0.3", "sleep", "60"], 124, "FAILED, TIMEOUT: the wall limit of 0.3 s was reached"),
        (["--cpu", "200ms", "sh", "-c", "while :; do :; done"], 137, "FAILED, CPU_LIMIT"),
        (["--file", "1K", "dd", "if=/dev/zero", "of=big", "bs=4K", "count=1"], 153, "FAILED, FILE_LIMIT"),
        (["no-such-program"], 125, "cannot run no-such-program: [Errno 2]"),
        (["/"], 125, "cannot run /: [Errno 13]"),
        (["--memory", "2M", "true"], 125, "LAUNCH_FAILED"),
    ],
    ids=words_of,
)
def test_exec_that_fails(sandboxed, argv, code, words):
    done = sandboxed("exec", *argv)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_captured_output_says_what_was_not_kept(sandboxed):
    done = sandboxed("exec", "--json", "--output", "8", "--", "seq", "9")
    text = "1\n2\n\n[... 10 bytes left out ...]\n8\n9\n"
    assert (done.returncode, json.loads(done.stdout)["stdout"]["text"]) == (0, text)


def test_nothing_of_the_tree_survives(sandboxed):
    seconds = "98765.4321"
    done = sandboxed("exec", "sh", "-c", f"setsid sleep {seconds} & sleep 0.1; exit 4")
    assert done.returncode == 4
    wait_until(lambda: not running_with(seconds))


def test_the_tree_dies_with_its_caller(started):
    seconds = "98765.1234"
    process = started("exec", "sh", "-c", f"setsid sleep {seconds} & touch started; wait")
    wait_until(lambda: running_with(seconds))
    process.kill()
    wait_until(lambda: not running_with(seconds))


# Both ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "Usage: sandboxed "),
        (["nope"], "No such command"),
        (["exec"], "Missing argument"),
        (["exec", "--nope", "true"], "No such option"),
        (["exec", "--wall", "5x", "true"], "'5x' is no time: write 500ms, 5s, 2m or 1h"),
        (["exec", "--memory", "-1", "true"], "'-1' is no size: write 4096, 64K, 256M or 1G"),
        (["exec", "--open-files", "many", "true"], "is not a valid integer"),
        (["exec", "--wall", "0", "true"], "wall_seconds=0.0 can mean nothing"),
        (["exec", "--output", "1T", "true"], "would widen the profile's"),
        (["exec", "--profile", "nosuch", "true"], "no profile 'nosuch'"),
        (["exec", ""], "''"),
        (["call", "math.sqrt"], "'math.sqrt' is no MODULE:FUNCTION"),
        (["call", "nosuch:x"], "no module 'nosuch' in the standard library"),
        (["call", "__main__:x"], "no module '__main__'"),
        (["call", "math:sqrt", "two"], "argument 1 is no JSON: two"),
        (["call", "math:sqrt", "NaN"], "JSON has no NaN"),
        (["call", "mine:echo", '{"a": 1, "a": 2}'], "the same key twice"),
        (["call", "mine:echo", "[" * 100_000], "argument 1 is no JSON"),
    ],
    ids=words_of,
)
def test_our_own_errors_are_125(sandboxed, argv, words):
    done = sandboxed(*argv)
    assert (done.returncode, done.stdout) == (125, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (sx.BoundaryUnavailable("landlock", "absent", "Boot it."), 126),
        (sx.LaunchError("no"), 125),
        (ValueError(), 125),
    ],
    ids=repr,
)
def test_what_launch_raises_has_a_code(monkeypatch, capfd, error, code):
    def launch(*_, **__):
        raise error

    monkeypatch.setattr(sx.SandboxExecutor, "_started", launch)
    monkeypatch.setattr(sys, "argv", ["sandboxed", "exec", "true"])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == code
    assert capfd.readouterr().err.startswith("sandboxed: ")


@pytest.mark.parametrize(
    ("argv", "code", "expected"),
    [
        (["call", "--json", "mine:noisy"], 0, {"state": "SUCCEEDED", "value": 1, "error": None}),
        (
            ["exec", "--json", "--", "sh", "-c", "printf '\\377'; exit 3"],
            3,
            {"state": "FAILED", "value": None},
        ),
        (["exec", "--json", "--wall", "200ms", "sleep", "9"], 124, {"state": "FAILED"}),
    ],
    ids=words_of,
)
def test_json_is_the_whole_outcome(sandboxed, argv, code, expected):
    done = sandboxed(*argv)
    outcome = json.loads(done.stdout)
    assert done.returncode == code
    assert done.stderr == ""
    assert list(outcome) == list(sx.Outcome.__slots__)
    assert outcome == outcome | expected
    for stream in ("stdout", "stderr"):
        assert list(outcome[stream]) == ["text", *sx.Output.__slots__]
    if code == 3:
        assert outcome["stdout"]["head"] == {"$bytes": "/w=="}
        assert outcome["exit"] == {"code": 3, "signal": None, "cause": "none"}


def test_ctrl_c_cancels(started, folder):
    process = started("call", "mine:wait")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert (folder / "cleaned").exists()
    assert "mine:wait: CANCELLED: " in process.stderr.read()


def test_ctrl_c_once_more_kills(started):
    process = started("call", "--grace", "5s", "mine:endure")
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "sandboxed: cancelling; Ctrl-C once more kills it\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert time.monotonic() - began < 4  # the ladder would take 5 s more


@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("sandboxed exec seq 100000 | head -n 1", "1\n"),
        ("sandboxed exec echo hi >&- 2>&- <&-; echo $?", "0\n"),
        ("sandboxed call math:sqrt 4 <&-", "2.0\n"),
        (
            "sandboxed exec --json echo hi 2>&1 >/dev/full; echo $?",
            "sandboxed: cannot write to standard output: No space left on device\n125\n",
        ),
        (
            "sandboxed --help 2>&1 >/dev/full; echo $?",
            "sandboxed: cannot write: No space left on device\n125\n",
        ),
    ],
)
def test_streams_that_are_closed_or_full(folder, command, out):
    path = f"{SANDBOXED.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (out, "")


# The example -----------------------------------------------------------------------------------------


def test_the_survey_tells_every_accident():
    began = time.monotonic()
    done = subprocess.run(
        [*SURVEY, "--with-accidents"], capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < 20
    *rows, summary = done.stdout.splitlines()[1:]
    assert "every ending is the expected one" in summary
    for ending in [
        ("INTERRUPTED", "SIGNAL", "SIGKILL"),
        ("CANCELLED", "CANCELLED"),
        ("FAILED", "TIMEOUT", "SIGKILL"),
        ("FAILED", "MEMORY_LIMIT"),
    ]:
        assert sum(tuple(row.split()[1 : 1 + len(ending)]) == ending for row in rows) == 1
    assert sum(" SUCCEEDED " in row for row in rows) == len(rows) - 4


def test_the_survey_of_a_folder(folder):
    done = subprocess.run([*SURVEY, folder, "--most", "1"], capture_output=True, text=True, check=True)
    lines, words = len(MODULE.splitlines()), len(MODULE.split())
    assert done.stdout.splitlines()[1].endswith(f"  {lines} lines, {words} words")
    with open(folder / "a-large-file", "wb") as file:
        file.truncate(1 << 40)
    done = subprocess.run([*SURVEY, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "NOT AS EXPECTED: a-large-file." in done.stdout


@pytest.mark.parametrize("with_rich", [True, False])
def test_the_survey_on_a_terminal(folder, with_rich):
    first = folder / "first"
    first.mkdir()
    if not with_rich:
        (first / "rich.py").touch()  # found before the package, and none
    environment = os.environ | {"PYTHONPATH": str(first)}
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [*SURVEY, folder], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while data := os.read(ours, 65536):
                shown += data
        os.close(ours)
    assert process.returncode == 0, shown
    assert (b"\x1b[" in shown) == with_rich
    assert b"mine.py" in shown
