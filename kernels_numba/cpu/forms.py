"""How sixteen consecutive weights of each form become a vector of float32, as LLVM IR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils

from kernels_numba.weights import VECTOR, Form

F32 = ir.FloatType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FloatVector = ir.VectorType(F32, VECTOR)
IntVector = ir.VectorType(I32, VECTOR)


@dataclass(frozen=True, slots=True)
class RowPointers:
    """One weight row inside a kernel: integer addresses of its data and scales, and its factor."""

    data: Any
    scale: Any
    factor: Any


def constant(value: int) -> Any:
    return ir.Constant(I64, value)


def splat(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    """All lanes equal to `scalar`."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, VECTOR), [0] * VECTOR)
    return builder.shuffle_vector(first, undefined, zeros)


def _int_lanes(value: int) -> Any:
    return ir.Constant(IntVector, [value] * VECTOR)


def load_f32(builder: Any, row: RowPointers, k: Any) -> Any:
    address = builder.add(row.data, builder.shl(k, constant(2)))
    return builder.load(builder.inttoptr(address, FloatVector.as_pointer()), align=4)


def load_bf16(builder: Any, row: RowPointers, k: Any) -> Any:
    address = builder.add(row.data, builder.shl(k, constant(1)))
    pointer = builder.inttoptr(address, ir.VectorType(I16, VECTOR).as_pointer())
    wide = builder.zext(builder.load(pointer, align=2), IntVector)
    return builder.bitcast(builder.shl(wide, _int_lanes(16)), FloatVector)


def e4m3_values() -> npt.NDArray[np.float32]:
    """float32 [256]: the value of each e4m3 code; the NaN codes, which no scale uses, read 0."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    magnitude = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    magnitude[code & 127 == 127] = 0
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


def _e4m3_table(builder: Any) -> Any:
    """Pointer to the 256 float32 values of e4m3, a constant of the module."""
    name = "dgpp_e4m3_values"
    if name in builder.module.globals:
        return builder.module.globals[name]
    kind = ir.ArrayType(F32, 256)
    add_variable: Any = cgutils.add_global_variable
    table = add_variable(builder.module, kind, name)
    table.initializer = ir.Constant(kind, [float(value) for value in e4m3_values()])
    table.linkage = "internal"
    table.global_constant = True
    return table


def load_nvfp4(builder: Any, row: RowPointers, k: Any) -> Any:
    """code · (e4m3 scale · multiplier); nibble = sign, 2 exponent bits, 1 mantissa bit."""
    packed_kind = ir.VectorType(I8, 8)
    address = builder.add(row.data, builder.lshr(k, constant(1)))
    packed = builder.load(builder.inttoptr(address, packed_kind.as_pointer()), align=1)
    low = builder.and_(packed, ir.Constant(packed_kind, [15] * 8))
    high = builder.lshr(packed, ir.Constant(packed_kind, [4] * 8))
    order = [index // 2 + 8 * (index % 2) for index in range(VECTOR)]
    nibbles = builder.shuffle_vector(low, high, ir.Constant(IntVector, order))
    code = builder.zext(nibbles, IntVector)
    # Twice the magnitude is a small integer: m for exponent 0, (2 + m) << (exponent - 1) beyond.
    mantissa = builder.and_(code, _int_lanes(1))
    exponent = builder.and_(builder.lshr(code, _int_lanes(1)), _int_lanes(3))
    subnormal = builder.icmp_unsigned("==", exponent, _int_lanes(0))
    shift = builder.select(subnormal, _int_lanes(0), builder.sub(exponent, _int_lanes(1)))
    normal = builder.shl(builder.or_(mantissa, _int_lanes(2)), shift)
    doubled = builder.sitofp(builder.select(subnormal, mantissa, normal), FloatVector)
    sign = builder.shl(builder.and_(code, _int_lanes(8)), _int_lanes(28))
    signed = builder.or_(builder.bitcast(doubled, IntVector), sign)
    halves = ir.Constant(FloatVector, [0.5] * VECTOR)
    value = builder.fmul(builder.bitcast(signed, FloatVector), halves)
    return builder.fmul(value, splat(builder, _nvfp4_scale(builder, row, k), FloatVector))


def _nvfp4_scale(builder: Any, row: RowPointers, k: Any) -> Any:
    scale_at = builder.add(row.scale, builder.lshr(k, constant(4)))
    index = builder.zext(builder.load(builder.inttoptr(scale_at, I8.as_pointer())), I64)
    entry = builder.gep(_e4m3_table(builder), [constant(0), index])
    return builder.fmul(builder.load(entry), row.factor)


LOADERS = {Form.F32: load_f32, Form.BF16: load_bf16, Form.NVFP4: load_nvfp4}
