"""Random weights in a checkpoint's form; and that every operation of a backend is tested here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from kernel_oracles import rows_of, tensor_of, whole_groups

from kernels_numba.backend import Backend
from kernels_numba.weights import DUMMY_DEVIATION, Form

ROWS = 64
ELSEWHERE = {
    "guard": "names a device's faults: tests/emulated and tests/gpu end servers by them",
    "record": "recorded steps against plain ones: tests/emulated, tests/gpu",
    "replay": "the same",
}


def values_of(backend, form: Form, seed: int) -> np.ndarray:
    """[ROWS, K]: what unit vectors bring out."""
    columns = whole_groups(form, 96)
    try:
        matrix = backend.dummy(form, ROWS, columns, seed)
    except ValueError as error:
        pytest.skip(str(error))
    out = backend.tensor(ROWS, wide=True)
    unit = np.eye(columns, dtype=np.float32)
    backend.linear(rows_of(backend, columns), tensor_of(backend, unit), matrix, out)
    return backend.read(out, columns).T


@pytest.mark.parametrize("form", list(Form), ids=lambda form: form.name)
def test_random_weights_are_seeded_and_of_the_stated_spread(backend, form) -> None:
    first = values_of(backend, form, 5)
    assert np.isfinite(first).all()
    assert first.std() == pytest.approx(DUMMY_DEVIATION, rel=0.15)
    assert abs(first.mean()) < DUMMY_DEVIATION / 5
    assert len(np.unique(first)) > 10
    # Neither rows nor columns repeat.
    assert len(np.unique(first, axis=0)) == ROWS
    np.testing.assert_array_equal(values_of(backend, form, 5), first)
    assert (values_of(backend, form, 6) != first).mean() > 0.5


def test_rows_that_are_made_apart_differ_as_others_do(backend) -> None:
    """Large matrices are made in pieces of rows, whose ends need not be the matrix's."""
    rows, columns = 2500, 40
    matrix = backend.dummy(Form.BF16, rows, columns, 7)
    out = backend.tensor(rows, wide=True)
    unit = np.eye(columns, dtype=np.float32)
    backend.linear(rows_of(backend, columns), tensor_of(backend, unit), matrix, out)
    made = backend.read(out, columns).T
    assert len(np.unique(made, axis=0)) == rows
    parts = np.array_split(made, 5)
    for part in parts:
        assert part.std() == pytest.approx(DUMMY_DEVIATION, rel=0.15)
        assert abs(part.mean()) < DUMMY_DEVIATION / 20


def test_every_operation_has_a_test() -> None:
    text = "\n".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    operations = [name for name, value in vars(Backend).items() if callable(value)]
    operations = [name for name in operations if not name.startswith("_")]
    assert len(operations) > 20
    missing = [name for name in operations if not re.search(rf"\.{name}\(", text)]
    assert set(missing) <= ELSEWHERE.keys()
    assert set(operations) >= ELSEWHERE.keys()
