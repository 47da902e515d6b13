"""The README's blocks do what they show. A block that is only shown says so in a comment in front of it."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"(?:<!-- (?P<marker>[\w-]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
BLOCKS = [
    match.groupdict() | {"line": README[: match.start()].count("\n") + 1} for match in BLOCK.finditer(README)
]
SHOWN_AT_MOST = 2
END_OF_COMMAND = "-- end of command --"


def blocks(kind):
    return [
        pytest.param(index, id=f"line-{block['line']}")
        for index, block in enumerate(BLOCKS)
        if block["kind"] == kind
    ]


def run(argv, folder, stdin=""):
    scripts = sysconfig.get_path("scripts")
    return subprocess.run(
        argv,
        cwd=folder,
        env=os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"},
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )


def test_every_block_is_run_or_says_that_it_is_not():
    kinds = [(block["marker"], block["kind"]) for block in BLOCKS]
    assert README.count("```") == 2 * len(BLOCKS)
    assert kinds.count(("shown", "text")) <= SHOWN_AT_MOST
    ran = [("python", "text"), ("console",), ("toml",), ("main-command",), ("test-command",)]
    rest = [marker or kind for marker, kind in kinds if marker != "shown"]
    while rest:
        run_by_a_test = next((group for group in ran if tuple(rest[: len(group)]) == group), None)
        assert run_by_a_test, f"neither run nor marked as shown: {rest}"
        del rest[: len(run_by_a_test)]


@pytest.mark.parametrize("index", blocks("python"))
def test_a_program_prints_what_is_shown(tmp_path, index):
    program = tmp_path / "program.py"
    program.write_text(BLOCKS[index]["text"], encoding="utf-8")
    done = run([sys.executable, "-W", "error", program], tmp_path)
    assert done.stdout == BLOCKS[index + 1]["text"]
    assert done.returncode == 0


@pytest.mark.parametrize("index", blocks("console"))
def test_a_session_shows_what_the_commands_print(tmp_path, index):
    expected = re.split(r"^\$ (.*)\n", BLOCKS[index]["text"], flags=re.MULTILINE)[1:]
    script = "".join(f"{command}\necho '{END_OF_COMMAND}'\n" for command in expected[::2])
    done = run(["bash"], tmp_path, script)
    assert done.stdout.split(f"{END_OF_COMMAND}\n") == [*expected[1::2], ""]


@pytest.mark.parametrize("index", blocks("toml"))
def test_a_profile_can_be_launched_under(tmp_path, index):
    file = tmp_path / "shown.toml"
    file.write_text(BLOCKS[index]["text"], encoding="utf-8")
    done = run(["sandboxed", "exec", "--profile", file, "--", "env"], tmp_path)
    assert done.returncode == 0, done.stdout
    assert "PATH=" in done.stdout
    assert "HOME=" not in done.stdout


def test_the_main_command_runs_an_example_that_is_there():
    (command,) = (block["text"] for block in BLOCKS if block["marker"] == "main-command")
    assert command.count("\n") == 1
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    (script,) = re.findall(r"\.venv/bin/python (\S+)", command)
    assert (ROOT / script).is_file()


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_map_names_files_that_are_there():
    section = README.partition("## To change ... open ...")[2].partition("\n## ")[0]
    names = re.findall(r"`([\w/.]+)`", section)
    assert names
    places = [ROOT, ROOT / "sandbox_exec", ROOT / "sandbox_exec/engine", ROOT / "worker/sandbox_worker"]
    places += [ROOT / "sandbox_exec/confinement"]
    assert [name for name in names if not any((place / name).exists() for place in places)] == []
