"""Scratch that kernels share, one row per core."""

from __future__ import annotations

import numpy as np

from kernels_numba.backend import Attention
from kernels_numba.cpu.memory import Block, allocate, grown, padded
from kernels_numba.cpu.span import SPAN
from kernels_numba.weights import VECTOR


class Scratch:
    """Room for one task per core."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._block = Block(allocate((cores, VECTOR), np.float32))

    def room(self, attention: Attention, *, packed: bool = False) -> int:
        """Make room for tasks of `attention`, with a span's keys or values where they are packed;
        float32 values of one state."""
        group = attention.heads // attention.kv_heads
        state = group * (padded(attention.values) + VECTOR)
        widest = max(padded(attention.head_dim), padded(attention.values)) if packed else 0
        self.floats(2 * state + (group + widest) * SPAN)
        return state

    def floats(self, count: int) -> Block:
        """Room for `count` float32 values per task."""
        self._block = grown(self._block, self._cores, count)
        return self._block

    @property
    def address(self) -> int:
        return self._block.address

    @property
    def stride(self) -> int:
        return self._block.stride
