"""Vectors of sixteen lanes in LLVM IR: their types, and how they are made and read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels_numba.weights import VECTOR

F16, F32 = ir.HalfType(), ir.FloatType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FloatVector = ir.VectorType(F32, VECTOR)
IntVector = ir.VectorType(I32, VECTOR)


@dataclass(frozen=True, slots=True)
class RowPointers:
    """One weight row inside a kernel: integer addresses of its data and scales, and its factor."""

    data: Any
    scale: Any = None
    factor: Any = None


def constant(value: int) -> Any:
    return ir.Constant(I64, value)


def splat(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    """All lanes equal to `scalar`."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, VECTOR), [0] * VECTOR)
    return builder.shuffle_vector(first, undefined, zeros)


def load_at(builder: Any, address: Any, kind: Any, align: int = 1) -> Any:
    """The value of LLVM type `kind` at an integer address."""
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def int_lanes(value: int) -> Any:
    return ir.Constant(IntVector, [value] * VECTOR)


def float_lanes(value: float) -> Any:
    return ir.Constant(FloatVector, [value] * VECTOR)


def load_nibbles(builder: Any, address: Any) -> Any:
    """Sixteen four-bit codes in order, as integers."""
    packed_kind = ir.VectorType(I8, VECTOR // 2)
    packed = load_at(builder, address, packed_kind)
    low = builder.and_(packed, ir.Constant(packed_kind, [15] * 8))
    high = builder.lshr(packed, ir.Constant(packed_kind, [4] * 8))
    order = [index // 2 + 8 * (index % 2) for index in range(VECTOR)]
    nibbles = builder.shuffle_vector(low, high, ir.Constant(IntVector, order))
    return builder.zext(nibbles, IntVector)
