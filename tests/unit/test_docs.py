"""What is generated in docs/ is up to date, and the diagram knows every phase and every event."""

import importlib.util
from pathlib import Path

import pytest

from sandbox_exec.engine import states

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_is_out_of_date(generate):
    for file, text in generate.generated().items():
        assert file.read_text(encoding="utf-8") == text, f"run python docs/generate.py: {file.name}"


def test_every_phase_and_every_event_is_tried(generate):
    found = generate.transitions()
    assert {phase for pair in found for phase in pair} == set(states.Phase)
    assert {type(event) for event in generate.EVENTS} == set(states.Event.__args__)


def test_every_public_name_has_its_entry(generate):
    import sandbox_exec

    text = generate.api()
    assert all(f"### `{name}" in text for name in sandbox_exec.__all__)
