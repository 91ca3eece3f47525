"""A cut of a part holds the values of the cut, whatever grid of scales lies over it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracles import random_part, whole_groups

from kernels_numba.cpu.matrix import CpuMatrix
from kernels_numba.cpu.memory import allocate
from kernels_numba.cpu.rows import embed
from kernels_numba.weights import LAYOUTS, Form, Part, dummy_part, matrix_bytes

FORMS = [form for form in Form if form is not Form.BF12]


def values(part: Part) -> np.ndarray:
    """What the CPU's kernels read of a part, float32 [N, K]."""
    matrix = CpuMatrix([part])
    tokens = np.arange(part.rows, dtype=np.int32)
    out = allocate((part.rows, matrix.depth), np.float32)
    embed(matrix.widen, int(tokens.ctypes.data), part.rows, 0, part.rows, *matrix.weights,
          matrix.depth, int(out.ctypes.data), int(out.strides[0]))  # fmt: skip
    return out[:, : part.columns]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_cut_holds_the_values_of_its_rows_and_columns(form: Form, data) -> None:
    rows, columns = 300, 384
    part, _ = random_part(form, rows, columns, 5)
    whole = values(part)
    step = max(LAYOUTS[form].group, 2)
    first = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - first))
    left = step * data.draw(st.integers(0, columns // step - 1))
    width = step * data.draw(st.integers(1, (columns - left) // step))
    cut = part.cut_rows(first, count).cut_columns(left, width)
    wanted = whole[first : first + count, left : left + width]
    np.testing.assert_array_equal(values(cut), wanted)
    np.testing.assert_array_equal(
        values(part.cut_columns(left, width).cut_rows(first, count)), wanted
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_cuts_stacked_are_the_matrix_again(form: Form) -> None:
    part, _ = random_part(form, 200, whole_groups(form, 96), 5)
    whole = CpuMatrix([part])
    again = CpuMatrix([part.cut_rows(0, 90), part.cut_rows(90, 110)])
    assert again.rows == whole.rows
    np.testing.assert_array_equal(again.data, whole.data)


@pytest.mark.parametrize("form", [Form.NVFP4, Form.FP8_BLOCK], ids=lambda form: form.name)
def test_what_no_group_begins_with_is_no_cut(form: Form) -> None:
    part, _ = random_part(form, 8, 96, 5)
    with pytest.raises(ValueError, match="8 … 39 is no cut of groups of"):
        part.cut_columns(8, 32)
    with pytest.raises(ValueError, match="4 … 8 is no cut of 8 rows"):
        part.cut_rows(4, 5)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_matrix_takes_what_the_plan_says(form: Form) -> None:
    matrix = CpuMatrix([dummy_part(form, 130, whole_groups(form, 160), 3)])
    held = matrix.data.nbytes + matrix.scale.nbytes + matrix.factors.nbytes
    assert held == matrix_bytes(form, 130, whole_groups(form, 160))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_dummy_weights_have_about_the_stated_deviation(form: Form) -> None:
    assert 0.01 < values(dummy_part(form, 64, 256, 3)).std() < 0.04


def test_blocks_narrower_than_a_group_are_refused() -> None:
    part, _ = random_part(Form.FP8_BLOCK, 8, 96, 5)
    assert part.scale is not None
    fine = Part(Form.FP8_BLOCK, part.data, part.scale.repeat(8, axis=1)[:, :6], block=(128, 16))
    with pytest.raises(ValueError, match="blocks of 16 columns, not whole groups of 32"):
        CpuMatrix([fine])
