"""Memory order between threads and processes, as LLVM IR: what plain loads and stores leave open.

Addresses are aligned 8-byte (`i32`: 4-byte) words of memory that others write too.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels_numba.jit import intrinsic

# ruff: noqa: ANN001, ANN201, ANN202 - numba.extending calls intrinsics with compiler objects.

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ARM = platform.machine() == "aarch64"


def _pointer(builder: Any, address: Any, kind: ir.Type) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def load_acquire(typing_context, address):  # type: ignore[no-untyped-def]
    """The int64 at `address`; what its writer stored before is visible afterwards."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _pointer(builder, args[0], _I64)
        return builder.load_atomic(pointer, "acquire", 8, typ=_I64)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Store int64 `value`; whoever sees it sees all stores of this thread before it."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store_atomic(args[1], _pointer(builder, args[0], _I64), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def load_i32(typing_context, address):  # type: ignore[no-untyped-def]
    """The int32 at `address`, in one order with every other sequentially consistent access."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load_atomic(_pointer(builder, args[0], _I32), "seq_cst", 4, typ=_I32)

    return types.int32(types.int64), codegen


@intrinsic
def add_i32(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Add int32 `value` at `address`, sequentially consistent; what was there before."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", _pointer(builder, args[0], _I32), args[1], "seq_cst")

    return types.int32(types.int64, types.int32), codegen


@intrinsic
def full_fence(typing_context):  # type: ignore[no-untyped-def]
    """No access of this thread passes here in either direction."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def pause(typing_context):  # type: ignore[no-untyped-def]
    """One step of a bounded spin. On aarch64 `isb`: most cores ignore `yield`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kinds = [_I32] if _ARM else []
        name = "llvm.aarch64.isb" if _ARM else "llvm.x86.sse2.pause"
        signature_of_it = ir.FunctionType(ir.VoidType(), kinds)
        insert: Any = cgutils.get_or_insert_function
        builder.call(insert(builder.module, signature_of_it, name), [_I32(15)] if _ARM else [])
        return context.get_dummy_value()

    return types.void(), codegen
