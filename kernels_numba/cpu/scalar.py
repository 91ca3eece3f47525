"""Scalar arithmetic with stated rounding: fused multiply-add, bit casts and exponentials.

Loops over these vectorise, and a vectorised lane gives the scalar's bits, so a value never
depends on where in an array it stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels_numba.jit import intrinsic, kernel

# ruff: noqa: ANN001, ANN201, ANN202 - numba.extending calls intrinsics with compiler objects.


def _declare_fma(builder: Any, kind: ir.Type, suffix: str) -> Any:
    signature = ir.FunctionType(kind, [kind, kind, kind])
    insert: Any = cgutils.get_or_insert_function
    return insert(builder.module, signature, f"llvm.fma.{suffix}")


@intrinsic
def fma32(typing_context, a, b, c):  # type: ignore[no-untyped-def]
    """float32 a·b + c with one rounding."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.call(_declare_fma(builder, ir.FloatType(), "f32"), args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def fma64(typing_context, a, b, c):  # type: ignore[no-untyped-def]
    """float64 a·b + c with one rounding."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.call(_declare_fma(builder, ir.DoubleType(), "f64"), args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def float_of_bits(typing_context, bits):  # type: ignore[no-untyped-def]
    """The float32 whose bit pattern is the int32 `bits`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def bits_of_float(typing_context, value):  # type: ignore[no-untyped-def]
    """The bit pattern of a float32 as int32."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), codegen


@intrinsic
def double_of_bits(typing_context, bits):  # type: ignore[no-untyped-def]
    """The float64 whose bit pattern is the int64 `bits`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
# Adding and subtracting 1.5 · 2^23 rounds to the nearest integer, ties to even.
_ROUND = np.float32(12582912.0)
_C2 = np.float32(5.0000001201e-1)
_C3 = np.float32(1.6666665459e-1)
_C4 = np.float32(4.1665795894e-2)
_C5 = np.float32(8.3334519073e-3)
_C6 = np.float32(1.3981999507e-3)
_C7 = np.float32(1.9875691500e-4)
_ONE = np.float32(1.0)
_LOW32 = np.float32(-87.0)
_HIGH32 = np.float32(88.0)


@kernel(inline=True)
def exp32(x: np.float32) -> np.float32:
    """float32 exp within 1 ulp or so on [-87, 88]; clamped outside."""
    x = min(max(x, _LOW32), _HIGH32)
    n = fma32(x, _LOG2E, _ROUND) - _ROUND
    r = fma32(n, -_LN2_HIGH, x)
    r = fma32(n, -_LN2_LOW, r)
    p = fma32(_C7, r, _C6)
    p = fma32(p, r, _C5)
    p = fma32(p, r, _C4)
    p = fma32(p, r, _C3)
    p = fma32(p, r, _C2)
    p = fma32(p, r * r, r) + _ONE
    return np.float32(p * float_of_bits(np.int32((np.int32(n) + np.int32(127)) << np.int32(23))))


@kernel(inline=True)
def sigmoid32(x: np.float32) -> np.float32:
    """1 / (1 + exp(-x)) in float32."""
    return np.float32(_ONE / (_ONE + exp32(np.float32(-x))))


_LOG2E_64 = 1.4426950408889634
_LN2_HIGH_64 = 6.93147180369123816490e-01
_LN2_LOW_64 = 1.90821492927058770002e-10
_ROUND_64 = 6755399441055744.0


@kernel(inline=True)
def exp64(x: float) -> float:
    """float64 exp for x ≤ 0 to about 1 ulp; 0 below -700."""
    clamped = max(x, -700.0)
    n = fma64(clamped, _LOG2E_64, _ROUND_64) - _ROUND_64
    r = fma64(n, -_LN2_HIGH_64, clamped)
    r = fma64(n, -_LN2_LOW_64, r)
    p = fma64(1.6059043836821613e-10, r, 2.08767569878681e-09)
    p = fma64(p, r, 2.505210838544172e-08)
    p = fma64(p, r, 2.755731922398589e-07)
    p = fma64(p, r, 2.7557319223985893e-06)
    p = fma64(p, r, 2.48015873015873e-05)
    p = fma64(p, r, 1.984126984126984e-04)
    p = fma64(p, r, 1.3888888888888889e-03)
    p = fma64(p, r, 8.333333333333333e-03)
    p = fma64(p, r, 4.1666666666666664e-02)
    p = fma64(p, r, 1.6666666666666666e-01)
    p = fma64(p, r, 0.5)
    p = fma64(p, r * r, r) + 1.0
    scaled = p * double_of_bits((np.int64(n) + np.int64(1023)) << np.int64(52))
    return scaled if x >= -700.0 else 0.0
