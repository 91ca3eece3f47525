"""Maps by which Hopper's copy engine finds boxes of a tensor in device memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError

MAP_BYTES = 128
_ALIGN = 64
_KINDS = {np.dtype(np.uint8): 0, np.dtype(np.uint16): 1}
"""CU_TENSOR_MAP_DATA_TYPE_UINT8 and _UINT16."""
_EXCHANGED = 3
"""CU_TENSOR_MAP_SWIZZLE_128B."""
_LINES = 3
"""CU_TENSOR_MAP_L2_PROMOTION_L2_256B."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of `box` values of a tensor of `sizes`, fastest dimension first.

    `strides` are bytes from one to the next in every dimension but the first, multiples of 16.
    `exchanged`: a row of 128 bytes gets its 16-byte units exchanged by its number. What lies
    beyond `sizes` reads as zero.
    """

    pointer: int
    kind: np.dtype[np.uint8] | np.dtype[np.uint16]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    exchanged: bool

    def encode(self) -> bytes:
        """The map as the hardware reads it. Raises CudaError where the driver refuses it."""
        rank = len(self.sizes)
        held = ctypes.create_string_buffer(MAP_BYTES + _ALIGN)
        at = (ctypes.addressof(held) + _ALIGN - 1) // _ALIGN * _ALIGN
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        failed = _encoder()(
            ctypes.c_void_p(at), _KINDS[self.kind], rank, ctypes.c_void_p(self.pointer),
            wide(*self.sizes), wide(*self.strides), narrow(*self.box), narrow(*[1] * rank),
            0, _EXCHANGED if self.exchanged else 0, _LINES, 0,
        )  # fmt: skip
        if failed:
            raise CudaError(f"the driver refuses a tensor map (error {failed}): {self}")
        return ctypes.string_at(at, MAP_BYTES)


@cache
def _encoder() -> ctypes._NamedFuncPointer:
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        message = f"the NVIDIA driver has no tensor maps: {error}; install driver 580 or newer"
        raise CudaError(message) from error


class Maps:
    """Maps side by side in device memory, never written again: the hardware caches them."""

    def __init__(self, maps: Sequence[Boxes]) -> None:
        cupy = load_cupy()
        self._array = cupy.asarray(np.frombuffer(b"".join(m.encode() for m in maps), np.uint8))
        self.pointer = int(self._array.data.ptr)
