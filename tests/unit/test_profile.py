"""Profiles and limits: closed by default, with an error that says what to do."""

import pytest

import sandbox_exec as sx
from sandbox_exec.confinement.plan import compile_plan
from sandbox_exec.confinement.profile import load_profile, parse


@pytest.mark.parametrize("name", ["pure", "reader", "workspace", "terminal", "plugin", "kanban"])
def test_a_profile_that_needs_the_wall_is_refused_by_name(name):
    with pytest.raises(sx.ProfileError, match=f"profile '{name}' asks for kernel layers"):
        sx.SandboxExecutor(name)


def test_so_is_one_whose_file_asks_for_layers(tmp_path, monkeypatch):
    file = tmp_path / "mine.toml"
    file.write_text("schema = 1\n[layers]\nrequire = ['landlock>=1']\n")
    monkeypatch.setattr("sandbox_exec.confinement.profile.shipped", lambda: {"mine": file})
    with pytest.raises(sx.ProfileError, match=r"profile 'mine' asks for kernel layers \(landlock>=1\)"):
        load_profile("mine")


@pytest.mark.parametrize("name", ["", "nnone", "no\0ne", 5, None])
def test_an_unknown_profile_is_an_error_that_helps(name):
    with pytest.raises(sx.ProfileError, match=r"none|non-empty"):
        load_profile(name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema = 2", "schema must be 1"),
        ("schema = 1\nlimit = 1", "Did you mean 'limits'"),
        ("schema = 1\n[limits]\nwal = '1s'", "unknown key .limits. 'wal'. Did you mean 'wall'"),
        ("schema = 1\n[limits]\nwall = 'soon'", "wall = 'soon'"),
        ("schema = 1\n[limits]\nmemory = 5", "memory = 5"),
        ("schema = ", "profile 'x'"),
    ],
)
def test_a_malformed_profile_names_its_key(text, says):
    with pytest.raises(sx.ProfileError, match=says):
        parse("x", text)


@pytest.mark.parametrize(
    "limits",
    [
        {"wall_seconds": 0}, {"wall_seconds": -1}, {"wall_seconds": float("nan")},
        {"wall_seconds": float("inf")},
        {"memory_bytes": 0}, {"memory_bytes": True}, {"memory_bytes": 1.5}, {"memory_bytes": 1 << 80},
        {"open_files": -1}, {"processes": "3"}, {"result_items": 0},
    ],
    ids=str,
)  # fmt: skip
def test_limits_that_can_mean_nothing_are_refused(limits):
    with pytest.raises(sx.ConfigError):
        sx.Limits(**limits)


def test_limits_can_only_be_tightened():
    profile = load_profile("none")
    assert compile_plan(profile, sx.Limits(grace_seconds=1)).limits.grace_seconds == 1
    with pytest.raises(sx.ConfigError, match="would widen"):
        compile_plan(profile, sx.Limits(grace_seconds=60))


@pytest.mark.parametrize(
    "given", [{"start": "zygote"}, {"spares": 2}, {"max_children": 0}, {"max_children": 10**9}]
)
def test_what_an_executor_cannot_be_is_refused(given):
    with pytest.raises(sx.ConfigError):
        sx.SandboxExecutor("none", **given)
