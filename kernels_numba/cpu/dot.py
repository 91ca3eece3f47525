"""Blocks of dot products over any form of weight: the one arithmetic behind every projection.

Each form's block is compiled when the first matrix of that form is made, and kernels call it by its
address: they are compiled once for all forms, and a machine compiles only the forms it meets.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from kernels_numba.cpu.tiles import COLUMNS, ROWS, dot_line, dot_tile, widen
from kernels_numba.jit import entry, intrinsic, kernel
from kernels_numba.weights import Form

# ruff: noqa: ANN001, ANN201, ANN202 - numba.extending calls intrinsics with compiler objects.

F32 = int(Form.F32)
WIDEN_ROWS = 12
"""From this many rows on a block of weights is widened to float32 first: same values, same sums."""


@kernel()
def dot_f32_block(
    x: int, x_stride: int, rows: int, w: int, w_stride: int, columns: int, depth: int,
    out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, c] = x[r] · w[c] for float32 rows; strides in bytes."""
    _dot_rows(F32, x, x_stride, rows, w, w_stride, 0, 0, 0, columns, depth, out, out_stride)


@kernel(inline=True)
def _dot_rows(
    form: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, columns: int, depth: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, c] = x[r] · w[c], weight rows read as they lie."""
    if rows == 1:
        for c in range(0, columns, COLUMNS):
            dot_line(form, x, x_stride, 0, min(COLUMNS, columns - c) - 1, w + c * w_stride,
                     w_stride, scale + c * scale_stride, scale_stride, factors + 4 * c, depth,
                     out + 4 * c, out_stride)  # fmt: skip
        return
    for r in range(0, rows, ROWS):
        last_row = min(ROWS, rows - r) - 1
        line = out + r * out_stride
        for c in range(0, columns, COLUMNS):
            dot_tile(form, x + r * x_stride, x_stride, last_row, min(COLUMNS, columns - c) - 1,
                     w + c * w_stride, w_stride, scale + c * scale_stride, scale_stride,
                     factors + 4 * c, depth, line + 4 * c, out_stride)  # fmt: skip


def _block(
    form: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, columns: int, depth: int, out: int, out_stride: int,
    panel: int,
) -> None:  # fmt: skip
    """out[r, c] = x[r] · w[c]; `panel` is scratch for `columns` float32 rows of `depth`."""
    if form == F32:
        dot_f32_block(x, x_stride, rows, w, w_stride, columns, depth, out, out_stride)
    elif rows >= WIDEN_ROWS:
        for c in range(columns):
            widen(form, w + c * w_stride, scale + c * scale_stride, factors + 4 * c, depth,
                  panel + 4 * depth * c)  # fmt: skip
        dot_f32_block(x, x_stride, rows, panel, 4 * depth, columns, depth, out, out_stride)
    else:
        _dot_rows(form, x, x_stride, rows, w, w_stride, scale, scale_stride, factors, columns,
                  depth, out, out_stride)  # fmt: skip


def _row(form: int, w: int, scale: int, factors: int, depth: int, out: int) -> None:
    """out[0 … depth − 1] = a weight row."""
    widen(form, w, scale, factors, depth, out)


@cache
def _compiled(function: Any, form: Form, arguments: int) -> Any:
    literal: Any = types.literal
    return entry(function, types.void(literal(int(form)), *[types.int64] * arguments))


def block_address(form: Form) -> int:
    """Address of the compiled `_block` of `form`, the `dot` of `dot_block`."""
    return int(_compiled(_block, form, 13).address)


def row_address(form: Form) -> int:
    """Address of the compiled `_row` of `form`, the `widen` of `widen_row`."""
    return int(_compiled(_row, form, 5).address)


def _call(builder: Any, args: list[Any]) -> None:
    """Call the function at args[0]; the form, which is compiled in, is passed as 0."""
    signature = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * len(args))
    target = builder.inttoptr(args[0], signature.as_pointer())
    builder.call(target, [ir.Constant(ir.IntType(64), 0), *args[1:]])


@intrinsic
def dot_block(  # type: ignore[no-untyped-def]
    typing_context, dot, x, x_stride, rows, w, w_stride, scale, scale_stride, factors, columns,
    depth, out, out_stride, panel,
):  # fmt: skip
    """out[r, c] = x[r] · w[c] by the block at `dot`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _call(builder, list(args))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 14), codegen


@intrinsic
def widen_row(typing_context, widen, w, scale, factors, depth, out):  # type: ignore[no-untyped-def]
    """out[0 … depth − 1] = the weight row at `w`, as float32, by the reader at `widen`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _call(builder, list(args))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen
