"""Compiled kernels by name, and their launch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernels_numba.gpu.build import machine_code
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.launch import Launcher
from kernels_numba.gpu.source import Unit

STATIC_SHARED = 48 << 10
"""Shared memory of a block that needs no asking for."""
EARLY_ARCHITECTURE = 90
"""The first on which a kernel can start before the one in front of it has ended."""


class Kernels:
    """Compiles each unit once; CuPy keeps the binaries on disk by source and device.

    Integers travel as 64-bit values and pointers as integers, floats as doubles: what the kernels
    declare.
    """

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self._launcher = Launcher()
        capability = self._cupy.cuda.Device().compute_capability
        self._early = int(capability) >= EARLY_ARCHITECTURE
        self.architecture = f"sm_{capability}a"
        self._modules: dict[Unit, Any] = {}
        self._functions: dict[tuple[Unit, str, int], Any] = {}

    def prepare(self, units: Iterable[Unit]) -> None:
        """Compile `units` now, but those of other architectures. Raises CudaError naming the source
        that does not."""
        for unit in units:
            if unit.architecture in ("", self.architecture):
                self._module(unit)

    def _module(self, unit: Unit) -> Any:
        cupy = self._cupy
        module = self._modules.get(unit)
        if module is not None:
            return module
        try:
            if unit.architecture:
                path = machine_code(str(unit), unit.text, unit.options(), unit.architecture)
                module = cupy.RawModule(path=str(path))
            else:
                module = cupy.RawModule(code=unit.text, options=unit.options(), backend="nvrtc")
            module.compile()
        except (cupy.cuda.compiler.CompileException, CudaError) as error:
            message = f"{unit} does not compile for this device: {error}; update 'dgpp[cuda]'"
            raise CudaError(message) from error
        except cupy.cuda.driver.CUDADriverError as error:
            message = f"{unit} cannot be loaded: {error}; update the driver"
            raise CudaError(message) from error
        self._modules[unit] = module
        return module

    def function(self, unit: Unit, name: str, shared: int = 0) -> Any:
        """The kernel, allowed `shared` bytes of dynamic shared memory. Raises CudaError."""
        key = (unit, name, shared)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self._build(unit, name, shared)
        return found

    def _build(self, unit: Unit, name: str, shared: int) -> Any:
        module = self._module(unit)
        try:
            function = module.get_function(name)
            if shared > STATIC_SHARED:
                function.max_dynamic_shared_size_bytes = shared
        except self._cupy.cuda.driver.CUDADriverError as error:
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
        *,
        early: bool = False,
    ) -> None:
        """Enqueue on the current stream. `early` kernels wait for what is in front of them on the
        device. Raises CudaError."""
        handle = self.function(unit, name, shared).kernel.ptr
        stream = self._cupy.cuda.get_current_stream().ptr
        self._launcher.launch(
            handle, stream, grid, block, shared, arguments, early=early and self._early
        )
