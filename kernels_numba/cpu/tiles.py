"""The two inner loops of the CPU backend, as LLVM IR: a tile of dot products, a tile of sums.

Dot tile: out[r, c] = Σ_k x[r, k] · w[c, k]. Every output has one accumulator of sixteen lanes that
runs over k in order by fused multiply-add and is folded 16 → 8 → 4 → 2 → 1 at the end. The result
depends on (K, form) alone: not on the tile's size, the row's place in it, or the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels_numba.cpu.forms import load_f32, loader, row_pointers
from kernels_numba.cpu.vectors import F32, I32, I64, FloatVector, RowPointers, constant, splat
from kernels_numba.jit import intrinsic
from kernels_numba.weights import LAYOUTS, VECTOR, Form

# ruff: noqa: ANN001, ANN201, ANN202 - numba.extending calls intrinsics with compiler objects.

ROWS = 4
COLUMNS = 4
LINE_BYTES = 64
AHEAD_BYTES = 4608
NEAR_TILE_BYTES = 16 << 10


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    signature = ir.FunctionType(FloatVector, [FloatVector] * 3)
    insert: Any = cgutils.get_or_insert_function
    function = insert(builder.module, signature, "llvm.fma.v16f32")
    return builder.call(function, [a, b, c])


def _shuffle(builder: Any, first: Any, second: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
    return builder.shuffle_vector(first, second, mask)


def _halves(held: int, width: int) -> tuple[list[int], list[int]]:
    """Lane numbers of the lower and upper halves of `held` sums of `width` lanes each."""
    half = width // 2
    low = [width * s + lane for s in range(held) for lane in range(half)]
    return low, [lane + half for lane in low]


def _fold(builder: Any, vectors: list[Any]) -> Any:
    """Sum of the lanes of each vector, as one vector in their order.

    Each sum adds its upper half to its lower half until one lane is left; vectors are joined in
    pairs on the way, so that sixteen sums cost fifteen additions. Their number is a power of two.
    """
    held, width = 1, VECTOR
    while width > 1:
        low, high = _halves(held, width)
        if len(vectors) == 1:
            undefined = ir.Constant(vectors[0].type, ir.Undefined)
            pairs = [(vectors[0], undefined)]
        else:
            shift = held * width
            low = [*low, *(lane + shift for lane in low)]
            high = [*high, *(lane + shift for lane in high)]
            pairs, held = list(zip(vectors[::2], vectors[1::2], strict=True)), 2 * held
        vectors = [
            builder.fadd(_shuffle(builder, a, b, low), _shuffle(builder, a, b, high))
            for a, b in pairs
        ]
        width //= 2
    return vectors[0]


def _clamped(builder: Any, index: int, last: Any) -> Any:
    """`index`, or `last` where the tile sticks out: the spare lanes repeat the last row."""
    if index == 0:
        return constant(0)
    inside = builder.icmp_signed("<", constant(index), last)
    return builder.select(inside, constant(index), last)


def _offsets(builder: Any, base: Any, stride: Any, indices: list[Any]) -> list[Any]:
    return [builder.add(base, builder.mul(stride, index)) for index in indices]


def _grid(rows: int, columns: int) -> list[tuple[int, int]]:
    return [(r, c) for r in range(rows) for c in range(columns)]


def _counted_loop(
    builder: Any, count: Any, step: int, first: list[Any], body: Callable[[Any, list[Any]], Any]
) -> list[Any]:
    """Run `body(k, carried)` for k = 0, step, … < count (at least once); the carried values."""
    entry = builder.block
    loop = builder.append_basic_block("loop")
    done = builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(constant(0), entry)
    carried = [builder.phi(FloatVector) for _ in first]
    for phi, start in zip(carried, first, strict=True):
        phi.add_incoming(start, entry)
    after = body(k, carried)
    following = builder.add(k, constant(step))
    last = builder.block
    k.add_incoming(following, last)
    for phi, value in zip(carried, after, strict=True):
        phi.add_incoming(value, last)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)
    return list(after)


def _prefetch(builder: Any, address: Any, locality: int) -> None:
    byte = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], signature)
    read = [ir.Constant(I32, value) for value in (0, locality, 1)]
    builder.call(function, [builder.inttoptr(address, byte), *read])


def _stream_ahead(builder: Any, form: Form, columns: int, weight_args: list[Any], k: Any) -> None:
    """Ask for the lines after this tile in address order.

    Weight rows lie one behind the other, so memory is asked for one stream, which reads up to
    three times faster than the tile's own `columns` interleaved ones. Lines of a tile that the
    first-level cache cannot hold stop at the second.
    """
    weight, stride = weight_args[:2]
    step_bytes = LAYOUTS[form].code_bytes(VECTOR) * columns
    ahead = builder.add(builder.mul(stride, constant(columns)), constant(AHEAD_BYTES))
    place = builder.mul(builder.sdiv(k, constant(VECTOR)), constant(step_bytes))
    first = builder.add(builder.add(weight, ahead), place)
    tile_bytes = builder.mul(stride, constant(columns))
    near = builder.icmp_signed("<=", tile_bytes, constant(NEAR_TILE_BYTES))
    with builder.if_else(near) as (small, large):
        for branch, locality in ((small, 3), (large, 2)):
            with branch:
                for line in range(0, step_bytes, LINE_BYTES):
                    _prefetch(builder, builder.add(first, constant(line)), locality)


def _store_sums(builder: Any, sums: Any, lines: list[Any], column_index: list[Any]) -> None:
    """Lane (row, column) of `sums` to its place; a full row of columns is one store."""
    columns = len(column_index)
    full = builder.icmp_signed("==", column_index[-1], constant(columns - 1))
    row_kind = ir.VectorType(F32, columns).as_pointer()
    undefined = ir.Constant(sums.type, ir.Undefined)
    with builder.if_else(full) as (whole, cut):
        with whole:
            for r, line in enumerate(lines):
                lanes = list(range(r * columns, (r + 1) * columns))
                row = _shuffle(builder, sums, undefined, lanes)
                builder.store(row, builder.inttoptr(line, row_kind), align=4)
        with cut:
            for place in range(len(lines) * columns):
                line, column = lines[place // columns], column_index[place % columns]
                address = builder.add(line, builder.shl(column, constant(2)))
                value = builder.extract_element(sums, ir.Constant(I32, place))
                builder.store(value, builder.inttoptr(address, F32.as_pointer()))


def _emit_dot(builder: Any, form: Form, rows: int, columns: int, args: list[Any]) -> None:
    x, x_stride, last_row, last_column, *weight_args, depth, out, out_stride = args
    load_weight = loader(form)
    row_index = [_clamped(builder, r, last_row) for r in range(rows)]
    column_index = [_clamped(builder, c, last_column) for c in range(columns)]
    inputs = [RowPointers(address) for address in _offsets(builder, x, x_stride, row_index)]
    weights = row_pointers(builder, form, weight_args, column_index)

    def body(k: Any, sums: list[Any]) -> list[Any]:
        if form is not Form.F32:
            _stream_ahead(builder, form, columns, weight_args, k)
        w = [load_weight(builder, row, k) for row in weights]
        x = [load_f32(builder, row, k) for row in inputs]
        grid = _grid(rows, columns)
        return [_fma(builder, w[c], x[r], s) for (r, c), s in zip(grid, sums, strict=True)]

    zeros = [ir.Constant(FloatVector, [0.0] * VECTOR)] * (rows * columns)
    sums = _counted_loop(builder, depth, VECTOR, zeros, body)
    lines = [builder.add(out, builder.mul(out_stride, index)) for index in row_index]
    _store_sums(builder, _fold(builder, sums), lines, column_index)


def _dot_tile(rows: int, columns: int) -> Any:
    """The tile for `rows` × `columns` outputs; its first argument is a literal form."""

    def tile(  # type: ignore[no-untyped-def]
        typing_context,
        form,
        x,
        x_stride,
        last_row,
        last_column,
        weight,
        weight_stride,
        scale,
        scale_stride,
        factors,
        depth,
        out,
        out_stride,
    ):
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            _emit_dot(builder, Form(form.literal_value), rows, columns, list(args[1:]))
            return context.get_dummy_value()

        if not isinstance(form, types.IntegerLiteral):
            return None
        return types.void(form, *[types.int64] * 12), codegen

    tile.__name__ = f"dot_{rows}x{columns}"
    return intrinsic(tile)


def _sum_tile(rows: int, vectors: int) -> Any:
    """out[r, lanes] = Σ_n p[r, n] · v[n, lanes] in order of n, `vectors` × 16 lanes wide."""

    def emit(builder: Any, args: list[Any]) -> None:
        p, p_stride, last_row, last_vector, values, value_stride, count, out, out_stride = args
        row_index = [_clamped(builder, r, last_row) for r in range(rows)]
        lane = [_clamped(builder, c, last_vector) for c in range(vectors)]
        lane_bytes = [builder.mul(index, constant(4 * VECTOR)) for index in lane]
        weight_at = _offsets(builder, p, p_stride, row_index)

        def body(n: Any, sums: list[Any]) -> list[Any]:
            line = builder.add(values, builder.mul(value_stride, n))
            columns = [RowPointers(builder.add(line, b), None, None) for b in lane_bytes]
            v = [load_f32(builder, column, constant(0)) for column in columns]
            at = [builder.add(a, builder.shl(n, constant(2))) for a in weight_at]
            w = [builder.load(builder.inttoptr(a, F32.as_pointer())) for a in at]
            lanes = [splat(builder, scalar, FloatVector) for scalar in w]
            grid = _grid(rows, vectors)
            return [_fma(builder, lanes[r], v[c], s) for (r, c), s in zip(grid, sums, strict=True)]

        outputs = [
            builder.inttoptr(
                builder.add(builder.add(out, builder.mul(out_stride, row_index[r])), lane_bytes[c]),
                FloatVector.as_pointer(),
            )
            for r, c in _grid(rows, vectors)
        ]
        first = [builder.load(address, align=4) for address in outputs]
        sums = _counted_loop(builder, count, 1, first, body)
        for address, total in zip(outputs, sums, strict=True):
            builder.store(total, address, align=4)

    def tile(  # type: ignore[no-untyped-def]
        typing_context,
        p,
        p_stride,
        last_row,
        last_vector,
        values,
        value_stride,
        count,
        out,
        out_stride,
    ):
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            emit(builder, list(args))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    tile.__name__ = f"sum_{rows}x{vectors}"
    return intrinsic(tile)


dot_tile = _dot_tile(ROWS, COLUMNS)
dot_line = _dot_tile(1, COLUMNS)
sum_tile = _sum_tile(ROWS, COLUMNS)


@intrinsic
def widen(typing_context, form, weight, scale, factors, count, out):  # type: ignore[no-untyped-def]
    """Write `count` values of one weight row of `form`, known at compile time, as float32."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _, weight_at, scale_at, factor_at, depth, target = args
        kind = Form(form.literal_value)
        layout = [weight_at, constant(0), scale_at, constant(0), factor_at]
        (row,) = row_pointers(builder, kind, layout, [constant(0)])
        load_weight = loader(kind)

        def body(k: Any, carried: list[Any]) -> list[Any]:
            address = builder.add(target, builder.shl(k, constant(2)))
            pointer = builder.inttoptr(address, FloatVector.as_pointer())
            builder.store(load_weight(builder, row, k), pointer, align=4)
            return []

        _counted_loop(builder, depth, VECTOR, [], body)
        return context.get_dummy_value()

    if not isinstance(form, types.IntegerLiteral):
        return None
    return types.void(form, *[types.int64] * 5), codegen
