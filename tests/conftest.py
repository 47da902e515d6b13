"""What every test gets: the leak fixture, a temporary folder of its own, the profile, a seed."""

import os
import random
import tempfile

import hypothesis
import pytest

import leaks

# The profile that regression tests run under, from this one place.
PROFILE = os.environ.get("SANDBOX_TEST_PROFILE", "none")

# No deadline: an example may start a process, and a busy machine is not a bug. Not derandomised: every run
# looks somewhere else, and the seed in the header brings a run back.
hypothesis.settings.register_profile("default", deadline=None, derandomize=False, print_blob=True)
hypothesis.settings.register_profile(
    "long", parent=hypothesis.settings.get_profile("default"), max_examples=5_000
)
hypothesis.settings.load_profile("default")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.randrange(1 << 32))


def pytest_report_header(config):
    seed = config.option.hypothesis_seed
    return [f"profile: {PROFILE}", f"hypothesis seed: {seed} (repeat with --hypothesis-seed={seed})"]


@pytest.fixture
def profile():
    return PROFILE


@pytest.fixture(autouse=True)
def no_leaks(tmp_path_factory):
    """After every test: the same descriptors, threads, children, /dev/shm and temporary entries as before.

    What a fixture of a wider scope holds was there before. The temporary folder (TMPDIR, and so tempfile's
    default) is the test's own; what the test wants to keep in files goes to tmp_path.
    """
    temporary = tmp_path_factory.mktemp("tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", None)
        before = leaks.take_stock(temporary)
        yield
        lines = leaks.wait_for_same(before, temporary, leaks.GRACE_SECONDS)
    if lines:
        pytest.fail(
            f"the test left this behind ({leaks.GRACE_SECONDS:g} s after its end):\n  " + "\n  ".join(lines),
            pytrace=False,
        )
    temporary.rmdir()
