"""Compiled kernels by name, and their launch."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kernels_numba.gpu.build import Compiler
from kernels_numba.gpu.device import cache_folder, load_cupy
from kernels_numba.gpu.errors import CudaError, FolderError
from kernels_numba.gpu.launch import Launcher
from kernels_numba.gpu.source import Unit

STATIC_SHARED = 48 << 10
"""Shared memory of a block that needs no asking for."""
EARLY_ARCHITECTURE = 90
"""The first on which a kernel can start before the one in front of it has ended."""


_log = logging.getLogger("dgpp.engine")


class Kernels:
    """Compiles each unit once; the machine code is kept on disk by source and architecture.

    Integers travel as 64-bit values and pointers as integers, floats as doubles: what the kernels
    declare.
    """

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self._launcher = Launcher()
        capability = self._cupy.cuda.Device().compute_capability
        self._early = int(capability) >= EARLY_ARCHITECTURE
        self.architecture = f"sm_{capability}a"
        self._compiler = Compiler(self.architecture)
        self._modules: dict[Unit, Any] = {}
        self._functions: dict[tuple[Unit, str, int], Any] = {}
        self._shared: dict[tuple[Unit, str], int] = {}

    def share_device(self) -> None:
        """Start no kernel early from now on: where ranks share a device, kernels that have started
        behind one's waiting sum could hold the room that the other needs to come to it."""
        self._early = False

    def prepare(self, units: Iterable[Unit]) -> None:
        """Compile `units` now, but those of other architectures. Raises CudaError naming the source
        that does not."""
        own = [unit for unit in units if unit.architecture in ("", self.architecture)]
        self._compile([unit for unit in own if not self._compiler.keeps(unit)])
        for unit in own:
            self._module(unit)

    def _compile(self, missing: list[Unit]) -> None:
        if not missing:
            return
        began, number = time.monotonic(), len(missing)
        _log.info(
            "compiling %d CUDA sources for %s: the first start on this machine that needs them; "
            "kept in %s",
            number,
            self.architecture,
            cache_folder(),
        )
        with ThreadPoolExecutor(min(number, os.cpu_count() or 1)) as pool:
            for _ in pool.map(self._compiled, missing):
                pass
        _log.info("%d CUDA sources compiled in %.1f s", number, time.monotonic() - began)

    def _compiled(self, unit: Unit) -> str:
        try:
            return str(self._compiler.compiled(unit))
        except FolderError:
            raise
        except CudaError as error:
            message = f"{unit} does not compile for this device: {error}; update 'dgpp[cuda]'"
            raise CudaError(message) from error

    def _module(self, unit: Unit) -> Any:
        module = self._modules.get(unit)
        if module is not None:
            return module
        path = self._compiled(unit)
        try:
            module = self._cupy.RawModule(path=path)
            module.compile()
        except self._cupy.cuda.driver.CUDADriverError as error:
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
            most = self._shared[unit, name] = max(self._shared.get((unit, name), 0), shared)
            if most + function.shared_size_bytes > STATIC_SHARED:
                # The kernel's, not this object's: a launch with less must not take it from others.
                function.max_dynamic_shared_size_bytes = most
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
