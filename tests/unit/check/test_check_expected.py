"""Tolerances beside a fixture: ours are read, other people's index.json is no matter."""

import json

import pytest

from dgpp.check.expected import Tolerance, Tolerances, stated_tolerances
from dgpp.errors import CheckpointError

OWN = {"path": "fixture", "expected": "expected.npz"}
STATED = {
    "logits": {"atol": 0.1, "rtol": 0.2},
    "hidden (float16)": {"atol": 0.3, "rtol": 0.4},
}


@pytest.fixture
def expected(tmp_path):
    """The path of values whose index.json `write` puts where it is looked for."""
    return tmp_path / "fixture" / "expected.npz"


def write(expected, index):
    (expected.parent.parent / "index.json").write_text(json.dumps(index))


def test_stated(expected):
    write(expected, [{"path": "other"}, OWN | {"tolerance": STATED, "variant": "v", "more": 1}])
    wanted = Tolerances(Tolerance(0.1, 0.2), Tolerance(0.3, 0.4), "v")
    assert stated_tolerances(expected) == wanted


@pytest.mark.parametrize("index", [{}, [], 3, None, {"fixtures": []}, [1, "x"], [{"name": "x"}]])
def test_a_foreign_index_states_nothing(expected, index):
    write(expected, index)
    assert stated_tolerances(expected) is None


def test_no_index_or_no_json(expected):
    assert stated_tolerances(expected) is None
    (expected.parent.parent / "index.json").write_bytes(b"\xff{")
    assert stated_tolerances(expected) is None


@pytest.mark.parametrize(
    "entry", [{}, {"tolerance": 1}, {"tolerance": {}}, {"tolerance": STATED | {"logits": {}}}]
)
def test_an_entry_without_tolerances_is_named(expected, entry):
    write(expected, [OWN | entry])
    with pytest.raises(CheckpointError, match=r"index\.json: fixture: "):
        stated_tolerances(expected)
