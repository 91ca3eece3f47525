"""Typed views over raw addresses: kernels take integers, which cost nothing to pass."""

from __future__ import annotations

from typing import Any

from numba import types

from kernels_numba.jit import carray, intrinsic, kernel

# ruff: noqa: ANN001, ANN202 - numba.extending calls intrinsics with compiler objects.


def pointer_to(element: Any) -> Any:
    """An intrinsic that takes an address for a pointer to `element`."""
    make_pointer: Any = types.CPointer
    pointer = make_pointer(element)

    def cast(typing_context, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.inttoptr(args[0], context.get_value_type(pointer))

        return pointer(types.int64), codegen

    cast.__name__ = f"pointer_{element}"
    return intrinsic(cast)


pointer_f32 = pointer_to(types.float32)
pointer_i32 = pointer_to(types.int32)
pointer_u16 = pointer_to(types.uint16)
pointer_i64 = pointer_to(types.int64)
pointer_u8 = pointer_to(types.uint8)


@kernel(inline=True)
def view_f32(address: int, count: int) -> Any:
    """float32 [count] at `address`."""
    return carray(pointer_f32(address), (count,))


@kernel(inline=True)
def view_i32(address: int, count: int) -> Any:
    """int32 [count] at `address`."""
    return carray(pointer_i32(address), (count,))


@kernel(inline=True)
def view_u16(address: int, count: int) -> Any:
    """uint16 [count] at `address`."""
    return carray(pointer_u16(address), (count,))


@kernel(inline=True)
def view_i64(address: int, count: int) -> Any:
    """int64 [count] at `address`."""
    return carray(pointer_i64(address), (count,))


@kernel(inline=True)
def view_u8(address: int, count: int) -> Any:
    """uint8 [count] at `address`."""
    return carray(pointer_u8(address), (count,))
