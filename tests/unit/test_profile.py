"""Profiles and limits: closed by default, with an error that says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandbox_exec as sx
from sandbox_exec.confinement.plan import compile_plan
from sandbox_exec.confinement.policy import LAYERS
from sandbox_exec.confinement.profile import load_profile, parse, shipped

WALLED = ["pure", "reader", "workspace", "terminal", "plugin", "kanban"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory, monkeypatch):
    """No profile of whoever runs the tests is found; one put into this folder is."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    folder = tmp_path_factory.mktemp("profiles")
    monkeypatch.setenv("SANDBOX_EXEC_PROFILES", str(folder))
    return folder


def write(folder, name, *lines):
    file = folder / f"{name}.toml"
    file.write_text("\n".join(["schema = 1", *lines, ""]))
    return file


# Refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WALLED)
def test_a_profile_that_needs_the_wall_is_refused_by_name(name):
    with pytest.raises(sx.ProfileError, match=f"profile '{name}' asks for kernel layers"):
        sx.SandboxExecutor(name)


def test_so_is_one_whose_file_asks_for_layers(own_folder):
    write(own_folder, "mine", "[layers]", "require = ['landlock>=1']")
    said = r"profile 'mine' asks for kernel layers \(landlock>=1\)"
    for profile in ("mine", own_folder / "mine.toml", load_profile("mine")):
        with pytest.raises(sx.ProfileError, match=said):
            sx.SandboxExecutor(profile)
        with sx.SandboxExecutor() as executor, pytest.raises(sx.ProfileError, match=said):
            executor.launch(len, ("",), profile=profile)
    with pytest.raises(sx.ProfileError, match=said):
        compile_plan(load_profile("mine"))


@pytest.mark.parametrize("name", WALLED)
def test_it_is_loaded_and_explained_all_the_same(name):
    profile = sx.load_profile(name)
    assert {"landlock>=1", "seccomp"} < set(profile.require)
    assert "nothing can be launched under this profile" in " ".join(profile.explain().split())


@pytest.mark.parametrize("name", ["", "nnone", "no\0ne", 5, None])
def test_an_unknown_profile_is_an_error_that_helps(name):
    with pytest.raises(sx.ProfileError, match=r"none|non-empty"):
        load_profile(name)


@pytest.mark.parametrize("profile", [5, b"none", ["none"], Path("none")], ids=repr)
def test_a_profile_is_a_name_a_path_or_a_profile(profile):
    with sx.SandboxExecutor() as executor, pytest.raises(sx.ProfileError, match=r"none|a path"):
        executor.launch(len, ("",), profile=profile)


# Read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "schema must be 1, not None"),
        ("\nschema = 2", 2, "schema must be 1, not 2"),
        ("schema = true", 1, "schema must be 1, not True"),
        ("schema = ", 1, "Invalid value"),
        ("schema = 1\n\nx = [1\n", 3, "Unclosed array"),
        ("schema = 1\nstart = exec\n", 2, r"Invalid value \(column 9\)"),
        ("schema = 1\nlimit = 1", 2, "unknown key 'limit'. Did you mean 'limits'"),
        ("schema = 1\nqqq = 1", 2, "unknown key 'qqq'. There are: description, env, extends"),
        ("schema = 1\n[limits]\nwal = '1s'", 3, r"unknown key \[limits\] 'wal'. Did you mean 'wall'"),
        ("schema = 1\n[limits]\nwall = 'soon'", 3, r"\[limits\] wall = 'soon': write '5ms' or '5s'"),
        ("schema = 1\r\n[limits]\r\n\r\nmemory = 5", 4, r"\[limits\] memory = 5: write '5B'"),
        ("schema = 1\nlimits.wall = '-1s'", 2, r"\[limits\] wall = '-1s'"),
        ("schema = 1\nlimits = {grace = '1s', memory = '0.5B'}", 2, "less than one byte"),
        ("schema = 1\n# threads = 1\n[limits]\n# threads\n'threads' = -1\n", 5, r"\[limits\] threads = -1"),
        ("schema = 1\n[limits]\nthreads = true", 3, r"\[limits\] threads = True: write a whole number"),
        ("schema = 1\n[limits]\nthreads = '5'", 3, "write a whole number"),
        ("schema = 1\n[limits]\nwall = '999999999999999999h'", 3, "can mean nothing"),
        ("schema = 1\nlimits = 5", 2, r"limits must be a table, \[limits\], not 5"),
        ("schema = 1\n[[env]]\npass = []", 2, r"env must be a table"),
        ("schema = 1\nstart = 'zygot'", 2, "start: write 'exec' or 'zygote', not 'zygot'. Did you mean"),
        ("schema = 1\nstart = ['exec']", 2, "start: write 'exec' or"),
        ("schema = 1\n[env]\npass = 'PATH'", 3, r"\[env\] pass: write a list of names of variables"),
        ("schema = 1\n[env]\npass = [\n'A',\n5]", 3, r"\[env\] pass: 5 is no name"),
        ("schema = 1\n[env]\npass = ['A=B']", 3, "'A=B' is no name"),
        ("schema = 1\n[env]\n\npas = []", 4, r"unknown key \[env\] 'pas'. Did you mean 'pass'"),
        ("schema = 1\n[layers]\nrequire = 'seccomp'", 3, r"\[layers\] require: write a list of layers"),
        ("schema = 1\n[layers]\nprefer = [['pidns']]", 3, r"\[layers\] prefer: \['pidns'\] is no layer"),
        ("schema = 1\n[layers]\nrequire = ['landlok']", 3, "'landlok'. Did you mean 'landlock'"),
        ("schema = 1\n[layers]\nrequire = ['pidns>=2']", 3, "comes in no versions"),
        ("schema = 1\ndescription = 'a\\nb'".replace("'", '"'), 2, "description: write one line"),
        ("schema = 1\nextends = 5", 2, "extends: write one profile's name"),
        ("schema = 1\nextends = 'nonne'", 2, "extends: no profile 'nonne'. Did you mean 'none'"),
        ("schema = 1\nextends = './nosuch.toml'", 2, "extends: cannot read .*nosuch.toml: No such file"),
        ("schema = 1\n[fs]\nread = []", 2, "'fs' belongs to the wall, which this version does not have"),
        ("schema = 1\ntoolsets = ['file']", 2, "'toolsets' belongs to the wall"),
    ],
)  # fmt: skip
def test_a_malformed_profile_names_file_line_and_key(own_folder, text, line, says):
    with pytest.raises(sx.ProfileError, match=f"profile 'x', line {line}: .*{says}"):
        parse("x", text)
    file = own_folder / "mine.toml"
    file.write_text(text, newline="")
    for given_name in ("mine", file):
        with pytest.raises(sx.ProfileError, match=f"profile 'mine', {file}, line {line}: .*{says}"):
            load_profile(given_name)


def test_what_is_no_text_is_no_profile(own_folder):
    (own_folder / "latin.toml").write_bytes(b"schema = 1\n# \xe4\n")
    with pytest.raises(sx.ProfileError, match=r"latin.toml: line 2 is no UTF-8"):
        load_profile("latin")
    os.mkfifo(own_folder / "fifo.toml")
    (own_folder / "folder.toml").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises(sx.ProfileError, match="it is no regular file"):
            load_profile(name)
    for text in ("x = " + "[" * 50_000, "#" * 70_000, "schema = " + "1" * 5_000):
        (own_folder / "odd.toml").write_text(text)
        with pytest.raises(sx.ProfileError, match=r"odd.toml, line 1: "):
            load_profile("odd")
    (own_folder / "odd.toml").write_text("#" + "ä" * 200_000)
    with pytest.raises(sx.ProfileError, match=r"odd.toml: a profile has at most 65,536 characters"):
        load_profile("odd")
    (own_folder / "link.toml").symlink_to("nowhere")
    with pytest.raises(sx.ProfileError, match=r"link.toml: No such file"):
        load_profile("link")
    with pytest.raises(sx.ProfileError, match=r"no profile 'nnnn"):
        load_profile("n" * 5_000)


# Found -------------------------------------------------------------------------------------------------


def test_the_first_one_found_counts(own_folder, tmp_path, monkeypatch):
    config = Path(os.environ["XDG_CONFIG_HOME"], "sandbox-exec/profiles")
    config.mkdir(parents=True)
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setenv("SANDBOX_EXEC_PROFILES", f"{own_folder}{os.pathsep}{os.pathsep}{second}")
    assert load_profile("faults").source == str(shipped()["faults"])
    for folder in (config, second, own_folder):
        file = write(folder, "faults")
        assert load_profile("faults").source == str(file)
    (own_folder / "faults.toml").write_text("")  # a broken one is not passed over
    with pytest.raises(sx.ProfileError, match="schema must be 1"):
        load_profile("faults")


def test_a_path_is_taken_as_it_is(own_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "here", "[limits]", "wall = '5s'")
    for path in ("here.toml", "./here.toml", Path("here.toml"), tmp_path / "here.toml"):
        assert load_profile(path) == sx.Profile("here", limits=sx.Limits(wall_seconds=5))
    with pytest.raises(sx.ProfileError, match="no profile 'here'"):
        load_profile("here")
    with pytest.raises(sx.ProfileError, match="cannot read profile 'none', none: No such file"):
        load_profile(Path("none"))


def test_a_launch_takes_a_name_a_path_and_a_profile(own_folder):
    file = write(
        own_folder, "mine", "extends = 'none'", "[env]", "pass = ['PATH']", "[layers]", "prefer = ['netns']"
    )
    with sx.SandboxExecutor(file) as executor:
        for profile in (None, "mine", str(file), file, load_profile(file)):
            child = executor.launch(sorted, (os.environ,), profile=profile)
            assert child.outcome(20).state == "SUCCEEDED"
            assert "netns" in child.degraded
        command = sx.Command([sys.executable, "-c", "import os; print(*os.environ)"])
        assert "HOME" not in executor.launch(command).outcome(20).stdout.text
        assert "HOME" in executor.launch(command, profile="none").outcome(20).stdout.text


# Merged ------------------------------------------------------------------------------------------------


def test_a_child_narrows_its_parent(own_folder):
    write(
        own_folder, "base", "[limits]", "wall = '1m'", "memory = '1G'", "threads = 4",
        "[env]", "pass = ['PATH', 'HOME']", "[layers]", "require = ['landlock>=1']", "prefer = ['netns']",
    )  # fmt: skip
    write(
        own_folder, "mine", "extends = 'base'", "start = 'zygote'", "[limits]", "wall = '2m'",
        "memory = '1M'", "processes = 9", "[env]", "pass = ['HOME', 'USER']", "[layers]",
        "require = ['landlock>=3', 'netns']", "prefer = ['mdwe']",
    )  # fmt: skip
    assert load_profile("mine") == sx.Profile(
        "mine",
        start="exec",
        limits=sx.Limits(wall_seconds=60, memory_bytes=1 << 20, processes=4, threads=0),
        environment=("HOME",),
        require=("landlock>=3", "netns"),
        prefer=("mdwe",),
    )


def test_what_a_child_does_not_mention_is_its_parents(own_folder):
    write(own_folder, "mine", "extends = 'none'")
    write(own_folder, "bare", "extends = './mine.toml'", "[env]", "pass = []")
    assert load_profile("mine").digest == load_profile("none").digest
    assert load_profile("bare") == sx.Profile("bare", limits=load_profile("none").limits, prefer=("pidns",))
    assert load_profile("faults").limits.grace_seconds == 0.2
    assert load_profile("faults").narrow().digest == load_profile("none").narrow(
        limits=sx.Limits(grace_seconds=0.2)
    ).digest  # fmt: skip


def test_a_loop_is_named(own_folder):
    for name, parent in [("a", "b"), ("b", "./c.toml"), ("c", "a"), ("me", "me")]:
        write(own_folder, name, f"extends = '{parent}'")
    with pytest.raises(sx.ProfileError, match=r"c.toml, line 2: .* in a loop: 'a' -> 'b' -> 'c' -> 'a'"):
        load_profile("a")
    with pytest.raises(sx.ProfileError, match="loop: 'me' -> 'me'"):
        load_profile("me")
    (own_folder / "link.toml").symlink_to("to.toml")
    write(own_folder, "to", "extends = 'link'")
    with pytest.raises(sx.ProfileError, match="loop"):
        load_profile("to")


def test_a_chain_has_an_end(own_folder):
    write(own_folder, "p0")
    for number in range(1, 20):
        write(own_folder, f"p{number}", f"extends = 'p{number - 1}'")
    assert load_profile("p7").digest == load_profile("p0").digest
    with pytest.raises(
        sx.ProfileError, match=r"p1.toml, line 2: extends goes over more than 8 profiles: 'p8' -> "
    ):
        load_profile("p8")


names = st.sampled_from(["PATH", "HOME", "LANG", "TZ"])
layers = st.sampled_from([*LAYERS, "landlock>=1", "landlock>=4"])
lists = {"unique": True, "max_size": 4}
limits = st.builds(
    sx.Limits,
    wall_seconds=st.none() | st.integers(1, 9) | st.floats(0.5, 9),
    memory_bytes=st.none() | st.integers(1, 99),
    processes=st.none() | st.integers(0, 9),
    threads=st.none() | st.integers(0, 9),
    output_bytes=st.none() | st.integers(0, 99),
    grace_seconds=st.sampled_from([None, 0, 0.0, -0.0, 1, 1.0]),
)
profiles = st.builds(
    sx.Profile,
    name=st.sampled_from("ab"),
    start=st.sampled_from(["exec", "zygote"]),
    limits=limits,
    environment=st.lists(names, **lists).map(tuple),
    require=st.lists(layers, **lists).map(tuple),
    prefer=st.lists(layers, **lists).map(tuple),
)


def bound(value):
    return float("inf") if value is None else value


def versions(layers):
    found = {}
    for layer in layers:
        name, _, version = layer.partition(">=")
        found[name] = max(int(version or 0), found.get(name, -1))
    return found


def is_within(narrow, wide):
    for name in sx.Limits.__slots__:
        assert bound(getattr(narrow.limits, name)) <= bound(getattr(wide.limits, name)), name
    assert bound(narrow.limits.tasks) <= bound(wide.limits.tasks)
    assert set(narrow.environment) <= set(wide.environment)
    had = versions(narrow.require)
    assert all(had.get(name, -1) >= version for name, version in versions(wide.require).items())
    had = versions(narrow.require + narrow.prefer)
    assert all(had.get(name, -1) >= version for name, version in versions(wide.prefer).items())
    assert "exec" not in {wide.start} - {narrow.start}


@given(profiles, profiles)
def test_merged_is_within_both_whichever_comes_first(one, other):
    merged = one.intersected(other)
    is_within(merged, one)
    is_within(merged, other)
    assert merged.digest == other.intersected(one).digest
    assert merged.name == one.name
    assert merged.intersected(one).digest == merged.intersected(other).digest == merged.digest
    assert one.intersected(one).digest == one.digest


@given(profiles, limits, st.lists(names, **lists), st.lists(layers, **lists))
def test_narrow_is_within_or_refused(profile, limits, passed, require):
    try:
        narrowed = profile.narrow(limits=limits, env_pass=passed, require=require)
    except sx.ConfigError:
        wider = not set(passed) <= set(profile.environment)
        pairs = [(getattr(limits, name), getattr(profile.limits, name)) for name in sx.Limits.__slots__]
        wider |= any(None not in pair and pair[0] > pair[1] for pair in pairs)
        assert wider or profile.limits.tasks is not None
    else:
        is_within(narrowed, profile)
        assert set(narrowed.environment) == set(passed)
        assert versions(require).items() <= versions(narrowed.require).items() or "landlock" in versions(
            require
        )


@pytest.mark.parametrize(
    ("given_parts", "says"),
    [
        ({"env_pass": "PATH"}, "write a list of names of variables"),
        ({"env_pass": ["SECRET"]}, "does not pass SECRET on, and more would widen it"),
        ({"env_pass": [5]}, "5 is no name"),
        ({"env_pass": 5}, "cannot narrow"),
        ({"require": "seccomp"}, "write a list of layers"),
        ({"require": ["secomp"]}, "Did you mean 'seccomp'"),
        ({"limits": {"wall_seconds": 1}}, "limits must be Limits"),
        ({"limits": sx.Limits(grace_seconds=60)}, "would widen the profile's 5"),
    ],
    ids=str,
)
def test_narrow_refuses_in_words(given_parts, says):
    with pytest.raises(sx.ConfigError, match=says):
        load_profile("none").narrow(**given_parts)


@pytest.mark.parametrize(
    "parts",
    [
        {"name": ""}, {"start": "fork"}, {"limits": None}, {"environment": "PATH"}, {"environment": ["PATH"]},
        {"require": ("nosuch",)}, {"prefer": ["pidns"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_profile_made_by_hand_is_checked_too(parts):
    with pytest.raises(sx.ProfileError, match="profile "):
        sx.Profile(**{"name": "mine"} | parts)


# Digest and words --------------------------------------------------------------------------------------


def test_a_digest_is_the_contents_alone(own_folder):
    # Written down: were it to change with a version of Python or of ours, records would no longer compare.
    profile = sx.Profile("x", limits=sx.Limits(wall_seconds=5), environment=("B", "A"), require=("seccomp",))
    assert profile.digest == "60ff1de577b382d9f13227ae49d696df8c1bace635bfb8a62af43e4a04ca79af"
    same = sx.Profile(
        "y", limits=sx.Limits(wall_seconds=5.0), environment=("A", "B"), require=("seccomp",),
        prefer=("seccomp",), description="other", source="elsewhere",
    )  # fmt: skip
    assert same.digest == profile.digest
    assert len({profile.digest, profile.narrow(env_pass=["A"]).digest, load_profile("none").digest}) == 3
    file = write(own_folder, "copy", *shipped()["none"].read_text().replace("schema = 1", "").splitlines())
    assert load_profile(file).digest == load_profile("none").digest


@given(profiles)
def test_a_digest_does_not_depend_on_the_order(profile):
    turned = sx.Profile(
        "turned", profile.start, profile.limits, profile.environment[::-1],
        profile.require[::-1], profile.prefer[::-1],
    )  # fmt: skip
    assert turned.digest == profile.digest


def test_a_digest_is_the_same_in_another_process():
    code = "import sandbox_exec as sx; print(*(sx.load_profile(n).digest for n in ['none', 'terminal']))"
    env = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [load_profile("none").digest, load_profile("terminal").digest]


def test_words_say_what_binds_and_that_there_is_no_wall(own_folder):
    write(
        own_folder, "mine", "start = 'zygote'", "[limits]", "wall = '90s'", "cpu = '2h'", "memory = '1.5G'",
        "processes = 3", "file = '1000B'", "grace = '250ms'", "[env]", "pass = ['PATH']",
        "[layers]", "prefer = ['pidns', 'netns']",
    )  # fmt: skip
    profile = load_profile("mine")
    text = " ".join(profile.explain(["file", "notes"]).split())
    for words in [
        f"digest {profile.digest}", "There is no kernel wall in this version", "all the rights of the user",
        "wall time 90 s", "cpu time of the tree 2 h", "memory 1,536 MiB", "further processes 3",
        "further threads 0", "open files no bound", "size of a file 1,000 bytes", "grace 250 ms",
        "environment, where set: PATH", "zygote is asked for", "required: none",
        "applied where the host can: pidns",
        "not to be had in this version, so named in degraded: netns",
        "Toolsets: without a wall the kernel holds nothing back",
        "file: the workspace", "notes: nothing in the kernel",
    ]:  # fmt: skip
        assert words in text
    with pytest.raises(sx.ToolsetError, match="collection of names"):
        profile.explain("file")


# Limits ------------------------------------------------------------------------------------------------


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


def test_processes_and_threads_are_one_sum():
    profile = sx.Profile("mine", limits=sx.Limits(processes=10))
    assert compile_plan(profile, sx.Limits(processes=4, threads=6)).limits.tasks == 10
    with pytest.raises(
        sx.ConfigError, match=r"processes=10 and threads=1 together would widen the profile's 10"
    ):
        compile_plan(profile, sx.Limits(threads=1))


@pytest.mark.parametrize(
    "options", [{"start": "zygote"}, {"spares": 2}, {"max_children": 0}, {"max_children": 10**9}]
)
def test_what_an_executor_cannot_be_is_refused(options):
    with pytest.raises(sx.ConfigError):
        sx.SandboxExecutor("none", **options)
