"""The driver's launch call, with the one attribute that CuPy does not pass on.

A kernel launched `early` may start while the one in front of it still runs; it waits inside, before
it touches anything but weights (`wait_for_previous` in common.cuh). Recorded in a graph, the edge
between the two keeps that property.
"""

from __future__ import annotations

import ctypes
from typing import TypeAlias

from kernels_numba.gpu.errors import CudaError

_EARLY = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes of which this one uses an int."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_Parameters: TypeAlias = "tuple[ctypes.Array[ctypes.c_int64], ctypes.Array[ctypes.c_void_p]]"


class Launcher:
    """Launches kernels whose parameters are all eight bytes wide."""

    def __init__(self) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
            self._call = self._driver.cuLaunchKernelEx
        except (OSError, AttributeError) as error:
            message = (
                f"the NVIDIA driver cannot launch kernels: {error}; install driver 580 or newer"
            )
            raise CudaError(message) from error
        self._attribute = _Attribute(_EARLY, b"", 1)
        self._config = _Config(attributes=ctypes.pointer(self._attribute))
        # Its own: ranks that are threads of one process launch at the same time.
        self._held: dict[int, _Parameters] = {}

    def launch(
        self,
        function: int,
        stream: int,
        grid: tuple[int, ...],
        block: int,
        shared: int,
        arguments: tuple[int | float, ...],
        *,
        early: bool,
    ) -> None:
        """Enqueue `function` (a CUfunction). Raises CudaError naming the error."""
        values, pointers = self._parameters(len(arguments))
        for i, argument in enumerate(arguments):
            if isinstance(argument, float):
                ctypes.c_double.from_buffer(values, 8 * i).value = argument
            else:
                values[i] = argument
        config = self._config
        config.grid[:] = (*grid, 1, 1)[:3]
        config.block[:] = (block, 1, 1)
        config.shared = shared
        config.stream = stream
        config.count = int(early)
        failed = self._call(ctypes.byref(config), ctypes.c_void_p(function), pointers, None)
        if failed:
            raise CudaError(f"a kernel cannot be launched: {self._name(failed)}")

    def _parameters(self, count: int) -> _Parameters:
        """Room for `count` parameters, and their addresses. The driver copies them at the call."""
        held = self._held.get(count)
        if held is None:
            values = (ctypes.c_int64 * count)()
            start = ctypes.addressof(values)
            pointers = (ctypes.c_void_p * count)(*(start + 8 * i for i in range(count)))
            held = self._held[count] = (values, pointers)
        return held

    def _name(self, error: int) -> str:
        name = ctypes.c_char_p()
        self._driver.cuGetErrorName(error, ctypes.byref(name))
        return (name.value or b"unknown").decode() + f" ({error})"
