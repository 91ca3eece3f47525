"""Every format: the kernels read what an independent decoder reads, and misfits are named.

bf12 is no format of a file: it is made of bf16 when that is loaded (`test_bf12.py` of the kernels).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from format_oracles import CASES, CODES, Coded, Tensors, write_checkpoint

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import Format
from dgpp.errors import CheckpointError
from dgpp.models import sources
from dgpp.models.sources import CheckedWeights, Linear, LoadedWeights
from kernels_numba.cpu.backend import CpuBackend

NAME = "model.layers.3.proj"


def tensors_of(case: str, coded: Coded | None = None) -> tuple[Tensors, np.ndarray]:
    coded = coded or CASES[case].draw(np.random.default_rng(5))
    tensors, values = CASES[case].store(coded)
    return {f"{NAME}.{suffix}": tensor for suffix, tensor in tensors.items()}, values


def linear_of(case: str, **cut) -> Linear:
    return Linear(NAME, *CASES[case].extents, CASES[case].format, **cut)


def bind(directory: Path, linear: Linear) -> None:
    binding = Binding(Checkpoint(directory))
    CheckedWeights(binding).matrix("", [linear])
    binding.finish()


def read(directory: Path, linear: Linear) -> np.ndarray:
    """All rows of the matrix as the CPU's kernels read them."""
    rows, columns = linear.taken
    backend = CpuBackend(rows, 1)
    matrix = LoadedWeights(Binding(Checkpoint(directory)), backend).matrix("", [linear])
    step, out = backend.rows(1, 1), backend.tensor(columns)
    step.count, step.tokens[:] = rows, np.arange(rows)
    backend.embed(step, matrix, out)
    return backend.read(out, rows)


@pytest.fixture(params=CASES)
def case(request) -> str:
    return request.param


def test_kernels_read_what_the_description_says(tmp_path: Path, case: str) -> None:
    tensors, values = tensors_of(case)
    write_checkpoint(tmp_path, tensors)
    bind(tmp_path, linear_of(case))
    got = read(tmp_path, linear_of(case))
    if case == "nvfp4-compressed":
        # A reciprocal is kept instead of a divisor.
        np.testing.assert_allclose(got, values, rtol=3e-7)
    else:
        np.testing.assert_array_equal(got, values)


def test_values_that_were_quantised_come_back_as_near_as_the_format_has_it(
    tmp_path: Path, case: str
) -> None:
    wanted = np.random.default_rng(6).normal(0, 0.1, CASES[case].extents).astype(np.float32)
    coded = CASES[case].encode(wanted)
    tensors, _ = tensors_of(case, coded)
    got = read(write_checkpoint(tmp_path, tensors), linear_of(case))
    kind = CODES[CASES[case].code]
    most = kind.near * np.abs(wanted) + kind.near_zero * CASES[case].scales(coded[1])
    assert (np.abs(got - wanted) <= most * 1.001).all()
    assert len(np.unique(coded[0])) >= min(kind.top, 100)


def test_rows_in_another_order_and_a_run_of_columns(tmp_path: Path, case: str) -> None:
    tensors, _ = tensors_of(case)
    write_checkpoint(tmp_path, tensors)
    rows, columns = CASES[case].extents
    whole = read(tmp_path, linear_of(case))
    take = ((rows * 3 // 4, rows // 8), (5, 30), (0, 5))
    step = {"int4-g128": 128, "int8-g128": 128}.get(case, 64 if "g64" in case else 32)
    span = (step, columns - step)
    got = read(tmp_path, linear_of(case, take=take, span=span))
    order = [n for first, count in take for n in range(first, first + count)]
    np.testing.assert_array_equal(got, whole[order][:, step:])


# What is done to a tensor, giving the words of the refusal.
def change_nothing_but_name(tensors: Tensors, name: str) -> str:
    tensors[f"{name}_"] = tensors.pop(name)
    return f"tensor {name} is missing"


def drop(tensors: Tensors, name: str) -> str:
    del tensors[name]
    return f"tensor {name} is missing"


def add(tensors: Tensors, name: str) -> str:
    tensors[f"{name}_more"] = tensors[name]
    return f"does not know: {name}_more$"


def transpose(tensors: Tensors, name: str) -> str:
    dtype, shape, blob = tensors[name]
    tensors[name] = dtype, shape[::-1], blob
    return rf"tensor {name} has shape \[{', '.join(map(str, shape[::-1]))}\], not"


def truncate(tensors: Tensors, name: str) -> str:
    dtype, shape, blob = tensors[name]
    tensors[name] = dtype, shape, blob[:-1]
    return f"tensor {name}: .* needs {len(blob)} bytes, not {len(blob) - 1}"


def other_dtype(tensors: Tensors, name: str) -> str:
    _, shape, blob = tensors[name]
    width = len(blob) // max(1, math.prod(shape))
    other = {1: "F8_E5M2", 2: "I16", 4: "U32", 8: "U64"}[width]
    tensors[name] = other, shape, blob
    return f"tensor {name} is {other}, not"


def other_extent(tensors: Tensors, name: str) -> str:
    """One line more than there should be: for a grid of scales, a block."""
    dtype, shape, blob = tensors[name]
    line = len(blob) // shape[0]
    tensors[name] = dtype, (shape[0] + 1, *shape[1:]), blob + blob[:line]
    return rf"tensor {name} has shape \[{shape[0] + 1}"


def other_grid(tensors: Tensors, name: str) -> str:
    """Scales of half as many columns each, or codes of twice the bits."""
    dtype, shape, blob = tensors[name]
    tensors[name] = dtype, (shape[0], 2 * shape[1]), blob + blob
    return rf"tensor {name} has shape \[{shape[0]}, {2 * shape[1]}\], not"


def misfits():
    """Every change of every tensor of every format that leaves another tensor than before."""
    for case, (stored, extents, *_) in CASES.items():
        for tensor in stored.tensors(*extents):
            changes = [change_nothing_but_name, drop, add, truncate, other_dtype]
            if tensor.shape != tensor.shape[::-1]:
                changes.append(transpose)
            if tensor.shape:
                changes.append(other_extent)
            if len(tensor.shape) == 2:
                changes.append(other_grid)
            for change in changes:
                yield pytest.param(
                    case, tensor.suffix, change, id=f"{case}-{tensor.suffix}-{change.__name__}"
                )


@pytest.mark.parametrize(("case", "suffix", "change"), list(misfits()))
def test_a_misfit_is_refused_by_name(tmp_path: Path, case: str, suffix: str, change) -> None:
    tensors, _ = tensors_of(case)
    message = change(tensors, f"{NAME}.{suffix}")
    write_checkpoint(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=message):
        bind(tmp_path, linear_of(case))


@pytest.mark.parametrize(
    ("case", "suffix", "at", "byte", "message"),
    [
        (
            "int4-g64",
            "weight_shape",
            0,
            41,
            r"weight_shape says \[41, 192\], the codes \[40",
        ),
        ("int4-g128", "qzeros", 7, 0x78, "qzeros is not 0x77777777 throughout"),
        ("int8-g128", "qzeros", 7, 0x80, "qzeros is not 0x7f7f7f7f throughout"),
        ("nvfp4-compressed", "weight_global_scale", 3, 0xC4, "weight_global_scale is -1234.5"),
        ("nvfp4-modelopt", "weight_scale_2", 3, 0xBA, "weight_scale_2 is -0.00080999"),
    ],
)
def test_a_value_that_contradicts_its_format_is_named(
    tmp_path: Path, case: str, suffix: str, at: int, byte: int, message: str
) -> None:
    tensors, _ = tensors_of(case)
    dtype, shape, blob = tensors[f"{NAME}.{suffix}"]
    tensors[f"{NAME}.{suffix}"] = dtype, shape, blob[:at] + bytes([byte]) + blob[at + 1 :]
    write_checkpoint(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=f"tensor {NAME}.{message}"):
        read(tmp_path, linear_of(case))


def test_activation_scales_are_ignored(tmp_path: Path) -> None:
    scales = {"nvfp4-modelopt": "input_scale", "nvfp4-compressed": "input_global_scale"}
    for case, suffix in scales.items():
        tensors, _ = tensors_of(case)
        tensors[f"{NAME}.{suffix}"] = ("F32", (1,), bytes(4))
        bind(write_checkpoint(tmp_path, tensors), linear_of(case))


def test_an_e8m0_scale_of_255_is_no_number_to_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "require_numbers", lambda *_: None)
    for case, suffix in (("mxfp4-u8", "weight_scale"), ("fp8-e8m0-32", "scale")):
        tensors, _ = tensors_of(case)
        dtype, shape, blob = tensors[f"{NAME}.{suffix}"]
        tensors[f"{NAME}.{suffix}"] = dtype, shape, b"\xff" + blob[1:]
        got = read(write_checkpoint(tmp_path, tensors), linear_of(case))
        assert np.isnan(got[0, :32]).all()
        assert np.isfinite(got[0, 32:]).all()


def test_formats_have_names_of_their_own() -> None:
    known: dict[str, Format] = {}
    for stored, *_ in CASES.values():
        assert known.setdefault(stored.name, stored).form is stored.form


NO_NUMBERS = {
    "f32": [np.nan, np.inf, -np.inf],
    "bf16": [0x7FC0, 0x7F80, 0xFF80],
    "f16": [np.nan, np.inf, -np.inf],
    "e4m3": [0x7F, 0xFF],
    "e8m0": [0xFF],
}
LARGEST = {"f32": 3.4e38, "bf16": 0x7F7F, "f16": 65504, "e4m3": 0x7E, "e8m0": 0xFE}
SCALED = [case for case in CASES if CASES[case].scale != "none"]


@pytest.mark.parametrize("scaled", SCALED)
def test_a_scale_that_is_no_number_is_named_by_its_tensor(tmp_path: Path, scaled: str) -> None:
    kind = CASES[scaled].scale
    for place in (0, -1):
        for value in [*NO_NUMBERS[kind], LARGEST[kind]]:
            codes, scales = CASES[scaled].draw(np.random.default_rng(5))
            scales.reshape(-1)[place] = value
            with np.errstate(all="ignore"):
                tensors, _ = tensors_of(scaled, (codes, scales))
            write_checkpoint(tmp_path, tensors)
            weights = LoadedWeights(Binding(Checkpoint(tmp_path)), CpuBackend(1, 1))
            if value == LARGEST[kind]:
                assert weights.matrix("", [linear_of(scaled)]) is not None
                continue
            with pytest.raises(CheckpointError) as found:
                weights.matrix("", [linear_of(scaled)])
            tensor, _, said = str(found.value).removeprefix("tensor ").partition(" ")
            assert said == "holds a scale that is no number: NaN or infinite"
            assert tensor in tensors
            assert "scale" in tensor.removeprefix(NAME)
