"""What a family keeps per request: declared by the model, served by pools that know no family."""

from __future__ import annotations

import msgspec

from kernels_numba.weights import VECTOR

CACHE_BYTES = 4
"""Bytes of one cached value on the CPU, whatever `kv_dtype` says: rows are float32."""


class PagedPlane(msgspec.Struct, frozen=True):
    """Keys and values per token of one layer, in blocks."""

    name: str
    kv_heads: int
    head_dim: int

    def token_bytes(self) -> int:
        """Bytes per token; heads are padded to whole vectors."""
        padded = -(-self.head_dim // VECTOR) * VECTOR
        return 2 * self.kv_heads * padded * CACHE_BYTES


class StateDeclaration(msgspec.Struct, frozen=True):
    """All state of a model."""

    planes: tuple[PagedPlane, ...]

    def token_bytes(self) -> int:
        return sum(plane.token_bytes() for plane in self.planes)
