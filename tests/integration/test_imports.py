"""Which code of the user's a child finds, and what is said before a process exists when it will not."""

import importlib
import importlib.util
import math
import shutil
import sys
import textwrap
import xml.dom.minidom
from pathlib import Path

import pytest

import sandbox_exec as sx
from sandbox_exec.engine.spawner import has_our_version

SECONDS = 20


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes an importable package outside site-packages."""

    def make(name, **modules):
        root = tmp_path / f"root_of_{name}"
        folder = root / name
        folder.mkdir(parents=True)
        for module, text in {"__init__": "", **modules}.items():
            (folder / f"{module}.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(str(root))
        importlib.invalidate_caches()
        return root

    yield make
    for name in list(sys.modules):
        if name.partition(".")[0].startswith("pk_"):
            del sys.modules[name]


def run(profile, target, args=(), **options):
    with sx.SandboxExecutor(profile, **options) as executor:
        return executor.launch(target, args).outcome(SECONDS)


def refused(profile, target, **options):
    with sx.SandboxExecutor(profile, **options) as executor:
        with pytest.raises(sx.ConfigError) as raised:
            executor.launch(target)
        assert executor.statistics()["started"] == 0
    return str(raised.value)


def test_the_targets_own_package_is_found_and_another_only_if_it_is_named(profile, package):
    package("pk_tools", numbers="def twice(n): return 2 * n")
    package(
        "pk_jobs", job="import pk_tools.numbers\nLIMIT = 3\ndef work(): return pk_tools.numbers.twice(LIMIT)"
    )
    work = importlib.import_module("pk_jobs.job").work
    missed = run(profile, work)
    assert (missed.error.classification, "pk_tools" in missed.error.message) == ("ModuleNotFoundError", True)
    assert run(profile, work, imports=["pk_tools"]).value == 6


def test_directories_come_in_the_order_of_the_hosts_path(profile, package):
    second, first = (
        package("pk_b", m="X = 0\ndef path():\n    import sys; return X or sys.path"),
        package("pk_a"),
    )
    importlib.import_module("pk_a")
    path = run(profile, importlib.import_module("pk_b.m").path, imports=["pk_a"]).value
    assert path.index(str(first)) < path.index(str(second))
    assert path.index(str(first)) > 0  # the standard library goes before them


def test_with_no_imports_a_target_goes_by_value(profile, package):
    package("pk_v", m="BASE = 40\ndef inner(n): return n + BASE\ndef work(n=2): return inner(n), __name__")
    work = importlib.import_module("pk_v.m").work
    outcome = run(profile, work, imports=())
    assert outcome.value == (42, "pk_v.m")


def test_the_first_missing_module_is_named_before_a_process_exists(profile, package):
    package("pk_other", deep="class Thing: pass")
    package("pk_n", m="import pk_other.deep\nN = 1\ndef work(): return N, pk_other.deep.Thing")
    work = importlib.import_module("pk_n.m").work
    text = refused(profile, work, imports=())
    assert "needs the module 'pk_other" in text
    assert "imports=['pk_other']" in text
    assert run(profile, work, imports=["pk_other"]).error.classification == "RESULT_NOT_SERIALIZABLE"


def test_a_lambda_that_names_a_package_needs_it_too(profile, package):
    package("pk_l", m="def give(): return 5")
    module = importlib.import_module("pk_l.m")
    assert "pk_l.m" in refused(profile, lambda: module.give() + 0)
    assert run(profile, lambda: module.give() + 0, imports=["pk_l"]).value == 5


@pytest.mark.parametrize("imports", [["no_such_package"], "json", [""], ["a.b.c"]], ids=repr)
def test_imports_that_cannot_be_had_are_refused_at_once(profile, imports):
    with pytest.raises(sx.ConfigError, match="imports"):
        sx.SandboxExecutor(profile, imports=imports)


def test_what_is_built_in_or_of_the_standard_library_needs_nothing(profile):
    assert run(profile, len, ("abc",), imports=()).value == 3
    assert run(profile, textwrap.dedent, ("  x",), imports=["json", "sys"]).value == "x"


def uses_submodules():
    return importlib.util.__name__, xml.dom.minidom.parseString("<a/>").documentElement.tagName


def test_submodules_of_the_standard_library_come_along(profile):
    assert run(profile, uses_submodules).value == ("importlib.util", "a")


# Other interpreters -----------------------------------------------------------------------------------


def another_version():
    """An interpreter of another minor version, beside ours or on the path; None if there is none."""
    beside = Path(sys.base_prefix).parent.glob("3.*/bin/python3")
    named = (shutil.which(f"python3.{minor}") for minor in range(11, 15))
    for python in sorted({str(place) for place in (*beside, *named) if place}):
        try:
            if not has_our_version(python):
                return python
        except sx.ConfigError:  # a shim that runs nothing
            continue
    return None


@pytest.fixture
def other():
    return another_version() or pytest.skip("no interpreter of another minor version is installed here")


def test_to_another_version_targets_go_by_name_only(profile, other, package):
    package("pk_x", m="FACTOR = 3\ndef times(n): import sys; return n * FACTOR, sys.version_info[:2]")
    times = importlib.import_module("pk_x.m").times
    value, version = run(profile, times, (2,), python=other).value
    assert value == 6
    assert version != tuple(sys.version_info[:2])
    assert run(profile, math.sqrt, (4,), python=other).value == 2.0
    for by_value in (lambda: 1, package):
        assert "importable by name" in refused(profile, by_value, python=other)
    with sx.SandboxExecutor(profile, python=other) as executor:
        with pytest.raises(sx.ConfigError, match="argument 0"):
            executor.launch(map, (lambda: 1, [1]))
        assert executor.launch(sx.Command(["true"])).outcome(SECONDS).error is None


@pytest.mark.parametrize(
    "python", ["/nowhere/python", "/bin/true/x", "/etc/passwd", "python\0", ""], ids=repr
)
def test_what_is_no_interpreter_is_refused_at_once(profile, python):
    with pytest.raises(sx.ConfigError, match="is no interpreter"):
        sx.SandboxExecutor(profile, python=python)
