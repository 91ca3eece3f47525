"""Scales that are no numbers, named by their tensor before anything is computed with them."""

from __future__ import annotations

from dgpp.checkpoint.formats import Format
from dgpp.errors import CheckpointError
from kernels_numba.weights import LAYOUTS, Part, Scale

_NO_NUMBER = {
    Scale.F32: ("u4", 0x7F80_0000),
    Scale.BF16: ("u2", 0x7F80),
    Scale.F16: ("u2", 0x7C00),
    Scale.E4M3: ("u1", 0x7F),
    Scale.E8M0: ("u1", 0xFF),
}
"""How wide a scale is, and the bits that are all set where it is NaN or infinite."""


def scales_of(stored: Format, name: str, rows: int, columns: int) -> str:
    """The tensor with the scales of matrix `name`; "" where it has none of its own."""
    tensors = stored.tensors(rows, columns)
    return tensors[1].name_of(name) if len(tensors) > 1 else ""


def require_numbers(part: Part, tensor: str) -> None:
    """Raises CheckpointError where a scale of `part`, from `tensor`, is NaN or infinite. Looks at
    some 10 GB of scales a second."""
    kind = LAYOUTS[part.form].scale
    if part.scale is None or not part.scale.size or kind not in _NO_NUMBER:
        return
    dtype, bits = _NO_NUMBER[kind]
    if int((part.scale.view(dtype) & bits).max()) == bits:
        raise CheckpointError(f"tensor {tensor} holds a scale that is no number: NaN or infinite")
