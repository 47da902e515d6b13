"""One test per public bug report, and what every one of them checks in the end."""

import pytest

from children.watch import Case


@pytest.fixture
def report(request):
    return request.param


@pytest.fixture
def case(report, profile, tmp_path):
    with Case(profile, tmp_path) as case:
        yield case
