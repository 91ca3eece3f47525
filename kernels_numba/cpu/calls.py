"""Calls of C functions by address, from compiled code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from kernels_numba.jit import intrinsic

# ruff: noqa: ANN001, ANN201 - numba.extending calls intrinsics with compiler objects.

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ARGUMENTS = 6


@intrinsic
def call_c(typing_context, function, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
    """The int that the function at address `function` returns for up to six integers or pointers.

    Those that it does not take lie in registers that it does not look at: so it is on x86-64 and
    on aarch64, whose C conventions are the only ones here.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64] * _ARGUMENTS)
        pointer = builder.inttoptr(args[0], kind.as_pointer())
        return builder.call(pointer, args[1:])

    return types.int32(*([types.int64] * (1 + _ARGUMENTS))), codegen
