"""Wheel and sdist, built here, installed and used where no checkout is near."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What an installed wheel must be able to do, run in an empty folder: one line each.
SMOKE = {
    "imports": ["python", "-c", "import sandbox_exec, sandbox_worker"],
    "version": ["sandboxed", "--version"],
}

pytestmark = pytest.mark.timeout(300)


def run(*argv, cwd, env=None):
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode:
        pytest.fail(
            f"{' '.join(map(str, argv))}: exit {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False
        )
    return done.stdout


def build(what, source, folder):
    run(sys.executable, "-m", "build", "--no-isolation", f"--{what}", "--outdir", folder, source, cwd=folder)
    (built,) = folder.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[what])
    return built


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = (path for path in folder.iterdir() if path.is_dir())
    return tree


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of commands of a fresh virtual environment that holds the wheel and what it depends on."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=venv.parent)
    run(venv / "bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=venv.parent)
    return venv / "bin"


@pytest.mark.parametrize("job", SMOKE)
def test_the_installed_wheel_works(installed, tmp_path, job):
    command, *arguments = SMOKE[job]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    run(
        installed / command,
        *arguments,
        cwd=tmp_path,
        env=clean | {"PATH": f"{installed}:{os.environ['PATH']}"},
    )


def test_the_installed_wheel_stands_alone(installed, tmp_path):
    for package in ["sandbox_exec", "sandbox_worker"]:
        place = run(installed / "python", "-Ic", f"import {package} as it; print(it.__file__)", cwd=tmp_path)
        assert Path(place.strip()).is_relative_to(installed.parent)


def test_the_wheel_holds_product_and_profiles_only(wheel):
    names = set(contents(wheel))
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "sandbox_exec",
        "sandbox_worker",
    }
    profiles = {f"sandbox_exec/profiles/{path.name}" for path in (ROOT / "profiles").glob("*.toml")}
    assert profiles
    assert profiles == {name for name in names if name.startswith("sandbox_exec/profiles/")}


def test_the_sdist_builds_the_same_wheel(wheel, unpacked, tmp_path):
    assert contents(build("wheel", unpacked, tmp_path)) == contents(wheel)


def test_the_sdist_can_be_tested(unpacked):
    for name in ["README.md", "CHANGELOG.md", ".ci/run", "tests/conftest.py", "tests/children/__init__.py"]:
        assert (unpacked / name).is_file()
