"""Compiled kernels by name, and their launch."""

from __future__ import annotations

from typing import Any

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.source import Unit

STATIC_SHARED = 48 << 10
"""Shared memory of a block that needs no asking for."""


class Kernels:
    """Compiles each unit when first asked; CuPy keeps the binaries on disk by source and device.

    Integers travel as 64-bit values and pointers as integers, floats as doubles: what the kernels
    declare.
    """

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self._modules: dict[Unit, Any] = {}
        self._functions: dict[tuple[Unit, str, int], Any] = {}

    def function(self, unit: Unit, name: str, shared: int = 0) -> Any:
        """The kernel, allowed `shared` bytes of dynamic shared memory. Raises CudaError."""
        key = (unit, name, shared)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self._build(unit, name, shared)
        return found

    def _build(self, unit: Unit, name: str, shared: int) -> Any:
        cupy = self._cupy
        try:
            module = self._modules.get(unit)
            if module is None:
                module = cupy.RawModule(code=unit.text, options=unit.options(), backend="nvrtc")
                self._modules[unit] = module
            function = module.get_function(name)
            if shared > STATIC_SHARED:
                function.max_dynamic_shared_size_bytes = shared
        except cupy.cuda.compiler.CompileException as error:
            raise CudaError(f"{unit} does not compile for this device: {error}") from error
        except cupy.cuda.driver.CUDADriverError as error:
            raise CudaError(f"{unit}: {name} cannot be loaded: {error}") from error
        return function

    def launch(
        self,
        unit: Unit,
        name: str,
        grid: tuple[int, ...],
        block: int,
        arguments: tuple[int | float, ...],
        shared: int = 0,
    ) -> None:
        """Enqueue on the current stream."""
        self.function(unit, name, shared)(grid, (block,), arguments, shared_mem=shared)
