"""The paged cache of one layer, and the scratch of its attention."""

from __future__ import annotations

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.source import HEAD_STEP, attend_shared_unit, attention_unit, padded_head
from kernels_numba.gpu.store import CudaEntries

SPAN = 128
"""Keys per span; the kernels' own constant."""
TILE_HEADS = 16
MOST_HEAD, HEAD_MULTIPLE = 512, 8
"""Values of a head at most, and what their number is a multiple of."""
BESIDE_VALUE, BESIDE = 48, 4 << 10
"""Bytes of shared memory that attention keeps beside a span: per value of a head, and in all."""


def block_bytes(padded: int) -> int:
    """Shared memory of a block of attention: keys and values of a span, and what is kept beside
    them."""
    return padded * (2 * SPAN * 2 + BESIDE_VALUE) + BESIDE


def most_head(shared: int) -> int:
    """Values of a head whose `block_bytes` are at most `shared`."""
    return max(d for d in range(0, MOST_HEAD + 1, HEAD_STEP) if block_bytes(d) <= shared)


def require_room(head_dim: int, shared: int) -> None:
    """Raises ValueError for heads of more than `most_head` values."""
    if head_dim > most_head(shared):
        message = f"heads of {head_dim} values: a block of this device has {shared >> 10} KiB"
        raise ValueError(f"{message} of shared memory, too little for {SPAN} keys of theirs")


class CudaPlane(CudaEntries):
    """Keys and values, bf16 [blocks, kv_heads, block_tokens, head_dim padded to 32]."""

    def __init__(self, blocks: int, block_tokens: int, kv_heads: int, head_dim: int) -> None:
        if head_dim % HEAD_MULTIPLE or head_dim > MOST_HEAD:
            message = (
                f"head_dim must be a multiple of {HEAD_MULTIPLE} up to {MOST_HEAD}, not {head_dim}"
            )
            raise ValueError(message)
        cupy = load_cupy()
        shape = (blocks, kv_heads, block_tokens, padded_head(head_dim))
        self.block_tokens = block_tokens
        self.padded = padded_head(head_dim)
        self.unit, self.shared_unit = attention_unit(head_dim), attend_shared_unit(head_dim)
        self.keys = cupy.zeros(shape, cupy.uint16)
        self.values = cupy.zeros(shape, cupy.uint16)
        self.addresses = (int(self.keys.data.ptr), int(self.values.data.ptr))
        super().__init__(self.keys, self.values)

    @property
    def span_bytes(self) -> int:
        """Shared memory that one span's keys and values take."""
        return 2 * SPAN * self.padded * 2


def partial_floats(heads: int, kv_heads: int, padded: int) -> int:
    """Scratch of one row's span: sixteen heads a tile, values with maximum and sum."""
    tiles = kv_heads * -(-(heads // kv_heads) // TILE_HEADS)
    return tiles * TILE_HEADS * (padded + 2)
