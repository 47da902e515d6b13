"""Which code of the user's a child finds, and what is said before a process exists when it will not."""

import importlib
import sys
import textwrap

import pytest

import sandbox_exec as sx

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
