"""How BF12 rows become vectors: the window's base and sixteen small exponents, escapes put right.

The layout is `kernels_numba.bf12`'s.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from kernels_numba.bf12 import RAW, WINDOW
from kernels_numba.cpu.vectors import (
    I8,
    I16,
    I32,
    I64,
    FloatVector,
    IntVector,
    RowPointers,
    constant,
    int_lanes,
    load_at,
    load_nibbles,
    splat,
)
from kernels_numba.weights import VECTOR

VECTOR_BYTES = 24


def load_bf12(builder: Any, row: RowPointers, k: Any) -> Any:
    """Values k … k + 15 of the row whose header is at `row.scale`."""
    place = builder.mul(builder.lshr(k, constant(4)), constant(VECTOR_BYTES))
    address = builder.add(row.data, place)
    rest = builder.zext(load_at(builder, address, ir.VectorType(I8, VECTOR)), IntVector)
    codes = load_nibbles(builder, builder.add(address, constant(VECTOR)))
    base = builder.zext(load_at(builder, row.scale, I16, 2), I32)
    exponents = builder.add(codes, splat(builder, base, IntVector))
    sign = builder.shl(builder.and_(rest, int_lanes(0x80)), int_lanes(8))
    mantissa = builder.and_(rest, int_lanes(0x7F))
    plain = builder.or_(builder.or_(sign, mantissa), builder.shl(exponents, int_lanes(7)))
    lanes = builder.icmp_unsigned("==", codes, int_lanes(WINDOW))
    mask = builder.bitcast(lanes, I16)
    escaped = builder.icmp_unsigned("!=", mask, ir.Constant(I16, 0))
    before = builder.block
    with builder.if_then(escaped, likely=False):
        mended = builder.call(_escapes(builder.module), [row.scale, k, plain])
        inside = builder.block
    bits = builder.phi(IntVector)
    bits.add_incoming(plain, before)
    bits.add_incoming(mended, inside)
    return builder.bitcast(builder.shl(bits, int_lanes(16)), FloatVector)


def _escapes(module: Any) -> Any:
    """The function (header, k, bits) → bits with the escapes of columns k … k + 15 in place."""
    name = "dgpp_bf12_escapes"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(IntVector, [I64, I64, IntVector]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    header, k, bits = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    raw = builder.icmp_unsigned("==", load_at(builder, header, I16, 2), ir.Constant(I16, RAW))
    with builder.if_then(raw):
        at = builder.add(header, builder.add(constant(4), builder.shl(k, constant(1))))
        whole = load_at(builder, at, ir.VectorType(I16, VECTOR), 2)
        builder.ret(builder.zext(whole, IntVector))
    count = builder.zext(load_at(builder, builder.add(header, constant(2)), I16, 2), I64)
    entry = builder.block
    test, body, done = (function.append_basic_block(part) for part in ("test", "body", "done"))
    builder.branch(test)
    builder.position_at_end(test)
    index, mended = builder.phi(I64), builder.phi(IntVector)
    builder.cbranch(builder.icmp_unsigned("<", index, count), body, done)
    builder.position_at_end(body)
    pair = builder.add(header, builder.shl(builder.add(index, constant(1)), constant(2)))
    lane = builder.sub(builder.zext(load_at(builder, pair, I16, 2), I64), k)
    value = builder.zext(load_at(builder, builder.add(pair, constant(2)), I16, 2), I32)
    here = builder.icmp_unsigned("<", lane, constant(VECTOR))
    place = builder.trunc(builder.select(here, lane, constant(0)), I32)
    following = builder.select(here, builder.insert_element(mended, value, place), mended)
    advanced = builder.add(index, constant(1))
    builder.branch(test)
    for phi, first, after in ((index, constant(0), advanced), (mended, bits, following)):
        phi.add_incoming(first, entry)
        phi.add_incoming(after, body)
    builder.position_at_end(done)
    builder.ret(mended)
    return function
