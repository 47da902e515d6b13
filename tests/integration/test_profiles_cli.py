"""`sandboxed profiles` and --profile, run as people run them."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

import sandbox_exec as sx

ROOT = Path(__file__).parents[2]
SANDBOXED = Path(sysconfig.get_path("scripts"), "sandboxed")
SHIPPED = {file.stem for file in (ROOT / "profiles").glob("*.toml")}
CAN = {"none", "faults"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'schema = 1\ndescription = "Mine."\n'
        'extends = "none"\n[limits]\nwall = "300ms"\n[env]\npass = ["PATH"]\n'
    )
    (tmp_path / "broken.toml").write_text("schema = 1\n[limits]\nwal = '1s'\n")
    return tmp_path


@pytest.fixture
def sandboxed(folder, tmp_path_factory):
    config = str(tmp_path_factory.mktemp("config"))
    env = os.environ | {"SANDBOX_EXEC_PROFILES": str(folder), "XDG_CONFIG_HOME": config}

    def run(*argv, **options):
        options = {"env": env, "cwd": folder, "stdin": subprocess.DEVNULL} | options
        return subprocess.run(
            [SANDBOXED, *argv], capture_output=True, text=True, timeout=40, check=False, **options
        )

    return run


def test_the_list_says_what_can_be_launched(sandboxed):
    done = sandboxed("profiles")
    head, *lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert head.split() == ["NAME", "LAUNCH", "DESCRIPTION"]
    found = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert list(found) == sorted(SHIPPED | {"mine", "broken"})
    assert {name for name, (can, _) in found.items() if can == "yes"} == CAN | {"mine"}
    assert found["mine"][1] == "Mine."
    assert "broken.toml, line 3: unknown key [limits] 'wal'. Did you mean 'wall'?" in found["broken"][1]


def test_so_it_does_for_machines(sandboxed, folder):
    done = sandboxed("profiles", "--json")
    assert done.stdout.count("\n") == 1
    found = {record["name"]: record for record in json.loads(done.stdout)}
    assert set(found) == SHIPPED | {"mine", "broken"}
    assert found["mine"] == {
        "name": "mine",
        "description": "Mine.",
        "file": str(folder / "mine.toml"),
        "digest": sx.load_profile(folder / "mine.toml").digest,
        "launchable": True,
        "reason": None,
    }
    assert found["broken"]["digest"] is None
    assert "seccomp" in found["pure"]["reason"]


def test_what_this_host_cannot_hold_a_child_to_cannot_be_launched(sandboxed, folder):
    (folder / "wide.toml").write_text("schema = 1\n[limits]\nopen_files = 4_000_000_000\n")
    found = json.loads(sandboxed("profiles", "--json", "wide").stdout)
    assert not found["launchable"]
    assert "hard limit" in found["reason"]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_one_is_explained(sandboxed, name):
    done = sandboxed("profiles", name)
    assert (done.returncode, done.stderr) == (0, "")
    profile = sx.load_profile(ROOT / "profiles" / f"{name}.toml")
    assert done.stdout == profile.explain(["file", "web", "terminal", "code"])
    assert "There is no kernel wall in this version" in done.stdout
    resolved = json.loads(sandboxed("profiles", "--json", name).stdout)
    assert resolved["digest"] in done.stdout
    assert resolved["launchable"] == (name in CAN)
    assert resolved["profile"]["limits"]["grace_seconds"] == (0.2 if name == "faults" else 5)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["profiles", "non"], "no profile 'non'. Did you mean 'none'?"),
        (["profiles", "--json", "min"], "Did you mean 'mine'?"),
        (["profiles", "./none"], "cannot read profile 'none', none: No such file"),
        (["profiles", "broken"], "broken.toml, line 3: unknown key [limits] 'wal'"),
        (["profiles", "none", "mine"], "Got unexpected extra argument"),
        (["profiles", ""], "non-empty"),
        (["exec", "--profile", "terminal", "true"], "profile 'terminal' asks for kernel layers (no_new"),
        (["call", "--profile", "./broken.toml", "math:sqrt", "4"], "broken.toml, line 3: "),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_cannot_be_had_is_125(sandboxed, argv, words):
    done = sandboxed(*argv)
    assert (done.returncode, done.stdout) == (125, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("profile", ["mine", "mine.toml", "./mine.toml"])
def test_a_run_is_held_to_its_profile(sandboxed, profile):
    assert sandboxed("exec", "--profile", profile, "--", "env").stdout.startswith("PATH=")
    assert "HOME" not in sandboxed("exec", "--profile", profile, "--", "env").stdout
    done = sandboxed("exec", "--profile", profile, "--", "sleep", "60")
    assert (done.returncode, done.stderr.count("the wall limit of 0.3 s")) == (124, 1)


def test_faults_ends_a_stubborn_child_soon(folder):
    with sx.SandboxExecutor("faults") as executor:
        child = executor.launch(sx.Command(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]))
        child.cancel("no more")
        assert child.outcome(4).state == "CANCELLED"


def test_help_has_examples(sandboxed):
    assert "Examples:\n    sandboxed profiles\n" in sandboxed("profiles", "--help").stdout
    assert "profiles" in sandboxed("--help").stdout


def test_a_listed_text_plays_no_tricks(sandboxed, folder):
    (folder / "odd\x1b[1m.toml").write_text("schema = 1\n")
    assert "\x1b" not in sandboxed("profiles").stdout
    assert "odd\\x1b[1m" in sandboxed("profiles").stdout
