"""How sixteen consecutive weights of each form become a vector of float32, as LLVM IR.

A form's loader is a reader of its codes, times the scale that its layout names. Sixteen values
never cross a scale's border, so a vector has one scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils

from kernels_numba.cpu.bf12 import load_bf12
from kernels_numba.cpu.vectors import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    FloatVector,
    IntVector,
    RowPointers,
    constant,
    float_lanes,
    int_lanes,
    load_at,
    load_nibbles,
    splat,
)
from kernels_numba.weights import LAYOUTS, VECTOR, Code, Form, Scale

# Codes --------------------------------------------------------------------------------------------


def load_f32(builder: Any, row: RowPointers, k: Any) -> Any:
    address = builder.add(row.data, builder.shl(k, constant(2)))
    return load_at(builder, address, FloatVector, 4)


def _load_bf16(builder: Any, row: RowPointers, k: Any) -> Any:
    address = builder.add(row.data, builder.shl(k, constant(1)))
    wide = builder.zext(load_at(builder, address, ir.VectorType(I16, VECTOR), 2), IntVector)
    return builder.bitcast(builder.shl(wide, int_lanes(16)), FloatVector)


def _load_e4m3(builder: Any, row: RowPointers, k: Any) -> Any:
    """Exponent and mantissa of a code are a half's, 2^8 too small. Halves widen without the stall
    that a subnormal float32 operand costs."""
    shorts = ir.VectorType(I16, VECTOR)
    packed = load_at(builder, builder.add(row.data, k), ir.VectorType(I8, VECTOR))
    code = builder.zext(packed, shorts)
    magnitude = builder.shl(
        builder.and_(code, ir.Constant(shorts, [0x7F] * VECTOR)),
        ir.Constant(shorts, [7] * VECTOR),
    )
    sign = builder.shl(
        builder.and_(code, ir.Constant(shorts, [0x80] * VECTOR)),
        ir.Constant(shorts, [8] * VECTOR),
    )
    half = builder.bitcast(builder.or_(magnitude, sign), ir.VectorType(F16, VECTOR))
    return builder.fmul(builder.fpext(half, FloatVector), float_lanes(256.0))


def _load_e2m1(builder: Any, row: RowPointers, k: Any) -> Any:
    """nibble = sign, 2 exponent bits, 1 mantissa bit."""
    code = load_nibbles(builder, builder.add(row.data, builder.lshr(k, constant(1))))
    # Twice the magnitude is a small integer: m for exponent 0, (2 + m) << (exponent - 1) beyond.
    mantissa = builder.and_(code, int_lanes(1))
    exponent = builder.and_(builder.lshr(code, int_lanes(1)), int_lanes(3))
    subnormal = builder.icmp_unsigned("==", exponent, int_lanes(0))
    shift = builder.select(subnormal, int_lanes(0), builder.sub(exponent, int_lanes(1)))
    normal = builder.shl(builder.or_(mantissa, int_lanes(2)), shift)
    doubled = builder.sitofp(builder.select(subnormal, mantissa, normal), FloatVector)
    sign = builder.shl(builder.and_(code, int_lanes(8)), int_lanes(28))
    signed = builder.or_(builder.bitcast(doubled, IntVector), sign)
    return builder.fmul(builder.bitcast(signed, FloatVector), float_lanes(0.5))


def _load_int4(builder: Any, row: RowPointers, k: Any) -> Any:
    code = load_nibbles(builder, builder.add(row.data, builder.lshr(k, constant(1))))
    return builder.sitofp(builder.sub(code, int_lanes(8)), FloatVector)


def _load_int8(builder: Any, row: RowPointers, k: Any) -> Any:
    packed = load_at(builder, builder.add(row.data, k), ir.VectorType(I8, VECTOR))
    code = builder.zext(packed, IntVector)
    return builder.sitofp(builder.sub(code, int_lanes(128)), FloatVector)


# Scales -------------------------------------------------------------------------------------------


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


def _scale_e4m3(builder: Any, at: Any) -> Any:
    index = builder.zext(load_at(builder, at, I8), I64)
    return builder.load(builder.gep(_e4m3_table(builder), [constant(0), index]))


def _scale_f32(builder: Any, at: Any) -> Any:
    return load_at(builder, at, F32, 4)


def _scale_bf16(builder: Any, at: Any) -> Any:
    bits = builder.zext(load_at(builder, at, I16, 2), I32)
    return builder.bitcast(builder.shl(bits, ir.Constant(I32, 16)), F32)


def _scale_f16(builder: Any, at: Any) -> Any:
    return builder.fpext(load_at(builder, at, F16, 2), F32)


def _scale_e8m0(builder: Any, at: Any) -> Any:
    """The code is the exponent of a float32, but for 0 (2^-127, a subnormal) and 255 (NaN)."""
    code = builder.zext(load_at(builder, at, I8), I32)
    bits = builder.shl(code, ir.Constant(I32, 23))
    least = builder.icmp_unsigned("==", code, ir.Constant(I32, 0))
    bits = builder.select(least, ir.Constant(I32, 0x00400000), bits)
    nan = builder.icmp_unsigned("==", code, ir.Constant(I32, 255))
    return builder.bitcast(builder.select(nan, ir.Constant(I32, 0x7FC00000), bits), F32)


Reader = Callable[..., Any]
_CODES: dict[Code, Reader] = {
    Code.F32: load_f32,
    Code.BF16: _load_bf16,
    Code.BF12: load_bf12,
    Code.E4M3: _load_e4m3,
    Code.E2M1: _load_e2m1,
    Code.INT4: _load_int4,
    Code.INT8: _load_int8,
}
_SCALES: dict[Scale, Reader] = {
    Scale.F32: _scale_f32,
    Scale.BF16: _scale_bf16,
    Scale.F16: _scale_f16,
    Scale.E4M3: _scale_e4m3,
    Scale.E8M0: _scale_e8m0,
}


def loader(form: Form) -> Reader:
    """`load(builder, row, k)`: values k … k + 15 of a row of `form`."""
    layout = LAYOUTS[form]
    load_codes = _CODES[layout.code]
    if layout.scale is Scale.NONE:
        return load_codes

    def load(builder: Any, row: RowPointers, k: Any) -> Any:
        at = row.scale
        if layout.group:
            group = builder.udiv(k, constant(layout.group))
            at = builder.add(at, builder.mul(group, constant(layout.scale.dtype.itemsize)))
        scale = _SCALES[layout.scale](builder, at)
        if layout.factor:
            scale = builder.fmul(scale, row.factor)
        return builder.fmul(load_codes(builder, row, k), splat(builder, scale, FloatVector))

    return load


def row_pointers(builder: Any, form: Form, args: list[Any], indices: list[Any]) -> list[Any]:
    """Rows `indices` of the weights (data, stride, scales, stride, factors).

    Where rows are indexed, `factors` are uint32 byte offsets of their lines of scales.
    """
    data, stride, scale, scale_stride, factors = args
    layout = LAYOUTS[form]
    rows = []
    for index in indices:
        row_data = builder.add(data, builder.mul(stride, index))
        factor_at = builder.add(factors, builder.mul(constant(4), index))
        line = factor = None
        if layout.indexed:
            line = builder.add(scale, builder.zext(load_at(builder, factor_at, I32, 4), I64))
        elif layout.scale is not Scale.NONE:
            line = builder.add(scale, builder.mul(scale_stride, index))
        if layout.factor:
            factor = load_at(builder, factor_at, F32, 4)
        rows.append(RowPointers(row_data, line, factor))
    return rows
