"""`sandboxed exec` as a launcher prefix: a command's streams, terminal, signals and end; real processes."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import termios
import time
import tty
from pathlib import Path

import psutil
import pytest

SANDBOXED = Path(sysconfig.get_path("scripts"), "sandboxed")
EXEC = [SANDBOXED, "exec", "--"]
PYTHON = [sys.executable, "-I", "-S", "-c"]
WAIT_SECONDS = 20

pytestmark = pytest.mark.timeout(120)


def wait_until(happened, seconds=WAIT_SECONDS):
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def running_with(argument):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if argument in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def run(*argv, **options):
    options = {"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1, "text": True} | options
    return subprocess.run([*EXEC, *argv], timeout=40, check=False, **options)


def hears_all():
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # of a shell's background they are ignored
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start():
    """Starts `sandboxed exec -- argv` with pipes; whatever is left of it is killed in the end."""
    running = []

    def begin(*argv, options=(), **others):
        others = {"stdin": -1, "stdout": -1, "stderr": -1, "text": True, "preexec_fn": hears_all} | others
        process = subprocess.Popen([SANDBOXED, "exec", *options, "--", *argv], **others)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()


# Streams ---------------------------------------------------------------------------------------------

IDENTITY = """
import fcntl, os, sys
for fd in range(3):
    found = os.fstat(fd)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    print(found.st_dev, found.st_ino, flags, os.get_inheritable(fd), file=sys.stderr)
"""


@pytest.mark.parametrize("kind", ["pipes", "fifos", "files", "null"])
def test_the_descriptors_are_our_own(tmp_path, kind):
    told, tell = os.pipe()
    if kind == "pipes":
        fds = [*os.pipe(), tell]
    elif kind == "fifos":
        os.mkfifo(tmp_path / "fifo")
        fds = [os.open(tmp_path / "fifo", flags) for flags in (os.O_RDWR, os.O_WRONLY | os.O_NONBLOCK)] + [
            tell
        ]
    elif kind == "files":
        (tmp_path / "in").touch()
        fds = [os.open(tmp_path / name, os.O_APPEND | os.O_CREAT | os.O_RDWR) for name in ("in", "out")] + [
            tell
        ]
    else:
        fds = [os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY), tell]
    expected = [
        f"{os.fstat(fd).st_dev} {os.fstat(fd).st_ino} {fcntl.fcntl(fd, fcntl.F_GETFL)} True" for fd in fds
    ]
    done = subprocess.run(
        [*EXEC, *PYTHON, IDENTITY], stdin=fds[0], stdout=fds[1], stderr=fds[2], timeout=40, check=False
    )
    for fd in fds:
        os.close(fd)
    with open(told) as stream:
        assert stream.read().splitlines() == expected
    assert done.returncode == 0


def test_a_file_is_read_and_written_where_it_stands(tmp_path):
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"0123456789")
    with open(source, "rb", buffering=0) as reading, open(sink, "wb", buffering=0) as writing:
        reading.seek(4)
        writing.write(b"before ")
        assert run("head", "-c", "3", stdin=reading, stdout=writing).returncode == 0
        writing.write(b" after")
        assert reading.read() == b"789"
    assert sink.read_bytes() == b"before 456 after"


def test_the_streams_flow_while_it_runs(start):
    process = start("sh", "-c", 'echo ready; while read -r line; do echo "<$line>" >&2; done; exit 9')
    assert process.stdout.readline() == "ready\n"
    for word in ("one", "two"):
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        assert process.stderr.readline() == f"<{word}>\n"
    process.stdin.close()
    assert process.wait(WAIT_SECONDS) == 9


def test_nobody_else_holds_its_streams(start):
    process = start("sh", "-c", "exec <&- >&-; sleep 60")
    assert process.stdout.read() == ""  # the end of it, while it runs
    with pytest.raises(BrokenPipeError):
        os.write(process.stdin.fileno(), b"x")
    assert process.poll() is None


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_is_closed_is_dev_null(number, tmp_path):
    look = f"import os; open({str(tmp_path / 'found')!r}, 'w').write(os.readlink('/proc/self/fd/{number}'))"
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {number}>&-', "sh", *EXEC, *PYTHON, look], timeout=40, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "found").read_text() == "/dev/null"


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("what", ["socket", "zero", "full", "event"])
def test_what_could_be_a_way_out_is_refused(number, what, tmp_path):
    ours, theirs = socket.socketpair()
    fd = {
        "socket": theirs.detach,
        "zero": lambda: os.open("/dev/zero", os.O_RDWR),
        "full": lambda: os.open("/dev/full", os.O_RDWR),
        "event": lambda: os.eventfd(0),
    }[what]()
    status, tell = os.pipe()
    streams = ["stdin", "stdout", "stderr"]
    done = subprocess.run(
        [SANDBOXED, "exec", "--status-fd", str(tell), "--", "touch", tmp_path / "ran"],
        **({"stdin": -3, "stdout": -1, "stderr": -1} | {streams[number]: fd}),
        pass_fds=[tell],
        timeout=40,
        check=False,
    )
    os.close(fd)
    os.close(tell)
    ours.close()
    theirs.close()
    with open(status) as stream:
        assert json.load(stream) == {
            "exit": 125, "by": "sandboxed", "state": None, "classification": None, "signal": None
        }  # fmt: skip
    assert done.returncode == 125
    assert not (tmp_path / "ran").exists()
    if number != 2:
        name = ["standard input", "standard output"][number]
        kind = {"socket": "a socket", "event": "an object of the kernel's"}.get(what, "a device")
        assert done.stderr.decode().startswith(f"sandboxed: {name} is {kind}: ")


def test_json_keeps_its_output_and_gives_it_no_input():
    done = subprocess.run(
        [SANDBOXED, "exec", "--json", "--", "sh", "-c", "cat; echo out; echo err >&2"],
        input="unread",
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    outcome = json.loads(done.stdout)
    assert (outcome["stdout"]["text"], outcome["stderr"]["text"], done.stderr) == ("out\n", "err\n", "")


# Signals ---------------------------------------------------------------------------------------------

FORWARDED = ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"]


@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_ends_the_command_as_it_would(start, name):
    process = start("sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout.readline() == "ready\n"
    number = signal.Signals[f"SIG{name}"]
    process.send_signal(number)
    assert process.wait(WAIT_SECONDS) == 128 + number
    assert process.stderr.read() == ""  # who sent it knows


@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_may_be_handled(start, name):
    script = (  # not a Python handler: one that comes just before a read blocks is run after it
        "import os, signal\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIG{name}])\n"
        "print('ready', flush=True)\n"
        f"for _ in range(2): signal.sigwait([signal.SIG{name}]); os.write(1, b'heard\\n')\n"
        "os._exit(6)"
    )
    process = start(*PYTHON, script)
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):  # the second is not lost
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.stdout.readline() == "heard\n"
    assert process.wait(WAIT_SECONDS) == 6


def test_a_signal_from_before_the_command_reaches_it(start):
    process = start("sleep", "60")
    wait_until(lambda: psutil.Process(process.pid).num_threads() > 1)  # the engine comes up
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 143


def test_ctrl_c_reaches_the_whole_process_group(start):
    process = start("sh", "-c", "echo ready; sleep 60; echo not reached")
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_SECONDS) == 130
    assert time.monotonic() - began < 10
    assert process.stdout.read() == ""


def test_who_insists_is_obeyed(start):
    process = start("sh", "-c", "trap 'echo no' TERM; echo ready; while :; do sleep 0.01; done")
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "no\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 137
    assert "CANCELLED" in process.stderr.read()


def test_what_we_ignore_the_command_does_not_hear(start):
    def ignores():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = start("sh", "-c", "echo ready; read line; exit 3", preexec_fn=ignores)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(WAIT_SECONDS) == 3


# Its caller ------------------------------------------------------------------------------------------

CALLER = """
import subprocess, sys, threading, time
def call():
    subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
thread = threading.Thread(target=call)  # its end is not the caller's
thread.start()
thread.join()
time.sleep(600)
"""


@pytest.mark.parametrize("options", [[], ["--json"]], ids=" ".join)
def test_it_dies_with_its_caller(options):
    seconds = f"9876{os.getpid()}.5"
    caller = subprocess.Popen(
        [*PYTHON, CALLER, SANDBOXED, "exec", *options, "--", "sh", "-c", f"setsid sleep {seconds} & wait"]
    )
    try:
        wait_until(lambda: running_with(seconds))
        (sandboxed,) = psutil.Process(caller.pid).children()
        time.sleep(0.3)
        assert running_with(seconds)  # the thread that started it is gone, and that is nothing
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: not running_with(seconds))
    wait_until(lambda: not sandboxed.is_running())


# --status-fd -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["exec", "--", "true"], (0, "command", "SUCCEEDED", None, None)),
        (["exec", "--", "sh", "-c", "exit 125"], (125, "command", "FAILED", "EXIT_CODE", None)),
        (["exec", "--", "no-such-program"], (125, "sandboxed", "FAILED", "FileNotFoundError", None)),
        (["exec", "--nope", "true"], None),
        (["exec", "--wall", "x", "true"], (125, "sandboxed", None, None, None)),
        (["exec", "--wall", "200ms", "sleep", "9"], (124, "sandboxed", "FAILED", "TIMEOUT", 9)),
        (["exec", "--", "sh", "-c", "exit 124"], (124, "command", "FAILED", "EXIT_CODE", None)),
        (["exec", "--", "sh", "-c", "kill -TERM $$"], (143, "command", "INTERRUPTED", "SIGNAL", 15)),
        (["exec", "--", "sh", "-c", "exit 143"], (143, "command", "FAILED", "EXIT_CODE", None)),
        (["exec", "--json", "--", "sh", "-c", "exit 2"], (2, "command", "FAILED", "EXIT_CODE", None)),
        (["call", "math:sqrt", "4"], (0, "command", "SUCCEEDED", None, None)),
        (["call", "math:sqrt", "-4"], (1, "command", "FAILED", "ValueError", None)),
        (["call", "nosuch:name"], (125, "sandboxed", None, None, None)),
    ],
    ids=str,
)
def test_the_status_line(argv, expected):
    told, tell = os.pipe()
    done = subprocess.run(
        [SANDBOXED, argv[0], "--status-fd", str(tell), *argv[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=[tell],
        timeout=40,
        check=False,
    )
    os.close(tell)
    with open(told) as stream:
        lines = stream.read().splitlines()
    if expected is None:  # an option that there is not: nothing was understood
        assert (done.returncode, lines) == (125, [])
        return
    assert [tuple(json.loads(line).values()) for line in lines] == [expected]
    assert done.returncode == expected[0]


@pytest.mark.parametrize("number", ["77", "-1", "99999999999999999999", "x"])
def test_a_status_descriptor_must_be_writable(number):
    done = subprocess.run(
        [SANDBOXED, "exec", "--status-fd", number, "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 125
    assert "--status-fd" in done.stderr


# A plugin --------------------------------------------------------------------------------------------

PLUGIN = """
import json, sys
print(json.dumps({"jsonrpc": "2.0", "method": "hello"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "exit":
        sys.exit(request["params"])
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": request["params"]}), flush=True)
"""
ROUND_TRIPS = 10_000
TIMES = 16  # that `cat` reads its file


def test_a_plugin_that_speaks_json_lines(tmp_path, start, record_property):
    (tmp_path / "plugin.py").write_text(PLUGIN)
    began = time.monotonic()
    plugin = start(sys.executable, "plugin.py", cwd=tmp_path)
    assert json.loads(plugin.stdout.readline())["method"] == "hello"
    hello = time.monotonic() - began
    began = time.monotonic()
    for number in range(ROUND_TRIPS):
        request = {"jsonrpc": "2.0", "id": number, "method": "echo", "params": [number, "\N{SNOWMAN}"]}
        plugin.stdin.write(json.dumps(request) + "\n")
        plugin.stdin.flush()
        assert json.loads(plugin.stdout.readline())["result"] == [number, "\N{SNOWMAN}"]
    trip = (time.monotonic() - began) / ROUND_TRIPS
    print(f"hello after {hello * 1e3:.0f} ms, a round trip in {trip * 1e6:.0f} us")
    record_property("hello_seconds", hello)
    plugin.stdin.write(json.dumps({"method": "exit", "params": 42}) + "\n")
    plugin.stdin.flush()
    assert plugin.wait(WAIT_SECONDS) == 42
    assert hello < 1 or os.getloadavg()[0] > os.cpu_count()


def test_a_plugin_ends_with_its_caller(tmp_path):
    mark = f"plugin-{os.getpid()}"
    (tmp_path / "plugin.py").write_text(PLUGIN)
    code = (
        "import subprocess, sys, time\n"
        "plugin = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(plugin.stdout.readline(), flush=True)\n"
        "time.sleep(600)"
    )
    argv = [*PYTHON, code, *EXEC, sys.executable, "plugin.py", mark]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE) as caller:
        assert b"hello" in caller.stdout.readline()
        assert running_with(mark)
        caller.kill()
    wait_until(lambda: not running_with(mark))


def test_throughput_is_that_of_the_command(tmp_path):
    size = 128 << 20
    block = tmp_path / "block"
    with open(block, "wb") as file:
        file.truncate(size)

    def seconds(*prefix):
        began = time.monotonic()
        with open(block, "rb") as source:
            argv = [*prefix, "cat", "-", *[block] * (TIMES - 1)]
            cat = subprocess.Popen(argv, stdin=source, stdout=subprocess.PIPE)
            counted = 0
            while data := cat.stdout.read1(1 << 20):
                counted += len(data)
            cat.stdout.close()
        assert cat.wait(WAIT_SECONDS) == 0
        assert counted == size * TIMES
        return time.monotonic() - began

    seconds()  # into the page cache
    bare, through = seconds(), seconds(*EXEC)
    for name, taken in (("bare", bare), ("through", through)):
        print(f"cat, {name}: {size * TIMES / taken / 1e6:.0f} MB/s")
    assert through < 60


# A terminal ------------------------------------------------------------------------------------------


class Terminal:
    """A terminal with `sandboxed` in its foreground, and us at the keyboard."""

    def __init__(self, *argv, program=(SANDBOXED, "exec"), real=(0, 1, 2), size=(33, 101), background=False):
        self.master, slave = pty.openpty()
        self.resize(*size)
        self.slave = slave  # held, to look at its attributes after the end
        self.before = termios.tcgetattr(slave)
        self.shown = b""

        def settle():
            hears_all()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            if background:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
                if (other := os.fork()) == 0:
                    os.setpgid(0, 0)
                    time.sleep(60)
                    os._exit(0)
                os.setpgid(other, other)
                os.tcsetpgrp(slave, other)

        streams = {
            name: slave if number in real else subprocess.PIPE
            for number, name in enumerate(("stdin", "stdout", "stderr"))
        }
        self.process = subprocess.Popen(
            [*program, *argv],
            **streams,
            start_new_session=True,
            preexec_fn=settle,  # noqa: PLW1509 there is one thread
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def see(self, pattern, seconds=WAIT_SECONDS):
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern.encode(), self.shown)):
            assert time.monotonic() < deadline, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                self.shown += os.read(self.master, 65536)
        self.shown = self.shown[found.end() :]
        return found[0].decode()

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[tty.LFLAG] & termios.ICANON

    def end(self, seconds=WAIT_SECONDS):
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.master], [], [], 0.02)[0]:
                self.shown += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0.1)[0]:
            self.shown += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.before
        return self.process.returncode

    def close(self):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for process in running_in_session(self.process.pid):
                process.kill()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        os.close(self.master)
        os.close(self.slave)


def running_in_session(session):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


@pytest.fixture
def terminal():
    made = []

    def make(*argv, **options):
        made.append(Terminal(*argv, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


LOOK = """
import os, sys
tty = os.open("/dev/tty", os.O_RDWR)
os.write(tty, b"leads %r front %r\\n" % (os.getsid(0) == os.getpid(), os.tcgetpgrp(tty) == os.getpgrp()))
os.write(tty, b"size %d %d\\n" % tuple(os.get_terminal_size(tty))[::-1])
os.write(tty, " ".join(os.ttyname(fd) if os.isatty(fd) else "-" for fd in range(3)).encode() + b" end\\n")
"""


def test_a_terminal_is_bridged(terminal):
    seen = terminal("--", *PYTHON, LOOK)
    seen.see("leads True front True\r\nsize 33 101\r\n")
    names = seen.see(r"/dev/pts/\d+ /dev/pts/\d+ /dev/pts/\d+ end\r\n").split()[:3]
    assert len(set(names)) == 1
    assert os.ttyname(seen.slave) not in names
    assert seen.end() == 0


@pytest.mark.parametrize("real", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_only_some_are_terminals(terminal, real):
    seen = terminal("--", *PYTHON, LOOK, real=real)
    expected = " ".join(r"/dev/pts/\d+" if number in real else "-" for number in range(3))
    seen.see(f"leads True front True\r+\nsize 33 101\r+\n{expected} end\r+\n")
    assert seen.end() == 0


@pytest.mark.parametrize("real", [(0,), (0, 1), (0, 1, 2)], ids=str)
def test_the_keyboard_reaches_it(terminal, real):
    seen = terminal(
        "--", "sh", "-c", 'echo ready >/dev/tty; read a; echo "<$a>" >/dev/tty; cat; exit 5', real=real
    )
    seen.see("ready\r+\n")
    seen.type("typed\n")
    seen.see("typed\r+\n<typed>\r+\n")  # once by its echo, once by the command
    seen.type("\x04")
    assert seen.end() == 5


def test_output_that_is_not_the_terminals_end_keeps_the_lines_of_others(terminal):
    seen = terminal("--", "sh", "-c", "echo ready >&2; read a", real=(0, 2))
    seen.see("ready\r+\n")
    wait_until(seen.is_raw)
    assert termios.tcgetattr(seen.slave)[tty.OFLAG] & termios.OPOST
    seen.type("\n")
    assert seen.end() == 0


def test_keys_that_send_signals(terminal):
    seen = terminal(
        "--", "sh", "-c", "trap 'echo heard; exit 3' INT; echo ready; while :; do sleep 0.01; done"
    )
    seen.see("ready\r\n")
    seen.type("\x03")
    seen.see("heard\r\n")
    assert seen.end() == 3
    seen = terminal("--", "sh", "-c", "echo ready; exec sleep 60")
    seen.see("ready\r\n")
    seen.type("\x03")
    assert seen.end() == 130
    assert b"sandboxed" not in seen.shown


def test_the_size_follows_the_window(terminal):
    script = (
        "import os, signal, time\n"
        # Not print: one handler may interrupt another in the midst of it.
        "signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b'%d %d\\n' % os.get_terminal_size()))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    seen = terminal("--", *PYTHON, script)
    seen.see("ready\r\n")
    for rows, columns in ((10, 20), (50, 132)):
        seen.resize(rows, columns)
        seen.see(f"{columns} {rows}\r\n")
    seen.process.send_signal(signal.SIGTERM)
    assert seen.end() == 143


@pytest.mark.parametrize(
    ("options", "command", "number", "code"),
    [
        ([], "exit 7", None, 7),
        ([], "kill -SEGV $$", None, 139),
        ([], "exec sleep 60", signal.SIGTERM, 143),
        ([], "exec sleep 60", signal.SIGHUP, 129),
        ([], "exec sleep 60", signal.SIGQUIT, 131),
        (["--wall", "600ms"], "exec sleep 60", None, 124),
        ([], "stty raw -echo; exit 2", None, 2),
    ],
)
def test_the_terminal_is_given_back(terminal, options, command, number, code):
    seen = terminal(*options, "--", "sh", "-c", f"echo ready; sleep 0.2; {command}")
    seen.see("ready\r\n")
    assert seen.is_raw()
    if number is not None:
        seen.process.send_signal(number)
    assert seen.end() == code  # looks at the attributes
    assert b"\n" not in seen.shown.replace(b"\r\n", b"")  # ours come after the terminal was given back


def test_the_terminal_of_a_program_that_there_is_not(terminal):
    seen = terminal("--", "no-such-program")
    assert seen.end() == 125
    assert b"cannot run no-such-program" in seen.shown


def test_all_of_a_long_output_arrives(terminal):
    seen = terminal("--", "seq", "200000")
    seen.see("\n200000\r\n")
    assert seen.end() == 0


def test_a_shell_controls_its_jobs(terminal):
    seen = terminal("--", "bash", "--norc", "--noprofile", "-i")
    seen.type("PS1='$ '; echo re''ady\n")
    seen.see("(?<!')ready\r\n")
    seen.type("sleep 77\n")
    seen.see("sleep 77\r\n")
    time.sleep(0.3)
    seen.type("\x1a")
    seen.see("Stopped")
    seen.type("exit; exit\n")
    assert seen.end() in {0, 1}


def test_in_the_background_the_terminal_is_left_alone(terminal):
    seen = terminal("--", "sh", "-c", "echo ready; sleep 0.3; echo done", background=True)
    seen.see("ready\r+\n")
    assert not seen.is_raw()
    seen.see("done\r+\n")
    assert seen.end() == 0


def test_a_job_that_is_continued_takes_the_terminal_again(terminal):
    seen = terminal("--", "sh", "-c", "echo ready; read a; exit 4")
    seen.see("ready\r\n")
    seen.process.send_signal(signal.SIGSTOP)
    termios.tcsetattr(seen.slave, termios.TCSANOW, seen.before)  # as a shell does
    seen.process.send_signal(signal.SIGCONT)
    wait_until(seen.is_raw)
    seen.type("\n")
    assert seen.end() == 4


def test_two_on_one_terminal_give_it_back(terminal):
    both = """
        "$0" exec -- sh -c 'echo first; sleep 1' <&3 & sleep 0.5
        "$0" exec -- sh -c 'echo second; sleep 1'
        wait; echo both
    """
    seen = terminal("-c", f"exec 3<&0; {both}", SANDBOXED, program=["sh"])
    seen.see("first(?s:.*)second(?s:.*)both")
    assert seen.end() == 0


def test_a_terminal_that_hangs_up_ends_it(terminal):
    seconds = f"9875{os.getpid()}.5"
    seen = terminal("--", "sleep", seconds)
    wait_until(lambda: len(running_with(seconds)) == 2)  # we are one of them
    os.close(seen.master)
    seen.master = os.open("/dev/null", os.O_RDONLY)
    assert seen.process.wait(WAIT_SECONDS) == 129
    wait_until(lambda: not running_with(seconds))


def test_the_terminal_itself_when_asked_for(terminal):
    seen = terminal("--tty=direct", "--", "sh", "-c", 'tty; read a; echo "<$a>"')
    assert seen.see(r"/dev/pts/\d+\r\n").strip() == os.ttyname(seen.slave)
    assert not seen.is_raw()
    seen.type("typed\n")
    seen.see("<typed>\r\n")
    assert seen.end() == 0
