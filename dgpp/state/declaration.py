"""What a family keeps per request: declared by the model, served by pools that know no family."""

from __future__ import annotations

import msgspec

from kernels_numba.gpu.source import HEAD_STEP
from kernels_numba.weights import VECTOR


class CacheForm(msgspec.Struct, frozen=True):
    """How a backend keeps cached rows: bytes of a value, and what heads are padded to."""

    value_bytes: int
    padding: int


CPU_CACHE = CacheForm(4, VECTOR)
"""float32 rows, whatever `kv_dtype` says."""
CUDA_CACHE = CacheForm(2, HEAD_STEP)


class PagedPlane(msgspec.Struct, frozen=True):
    """Keys and values per token of one layer, in blocks."""

    name: str
    kv_heads: int
    head_dim: int

    def token_bytes(self, form: CacheForm) -> int:
        """Bytes per token; heads are padded to what kernels read at once."""
        padded = -(-self.head_dim // form.padding) * form.padding
        return 2 * self.kv_heads * padded * form.value_bytes


class StateDeclaration(msgspec.Struct, frozen=True):
    """All state of a model."""

    planes: tuple[PagedPlane, ...]

    def token_bytes(self, form: CacheForm) -> int:
        return sum(plane.token_bytes(form) for plane in self.planes)
