"""What a plan does to the engine's state before its rows run: kept, given, shared and grown."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dgpp.sched.plan import Grow, Keep, Open, Plan
from dgpp.state.pools import StatePools

I32Array = npt.NDArray[np.int32]


class StateMoves:
    """Applies plans to `pools` and to the block `tables` int32 [slots, blocks of a slot].

    In the order of the plans, each before its rows: snapshots are taken first, of what the steps
    before left; then slots change hands.
    """

    def __init__(self, pools: StatePools, tables: I32Array, block_tokens: int) -> None:
        self._pools = pools
        self._tables = tables
        self._block_tokens = block_tokens

    def apply(self, plan: Plan) -> None:
        for keep in plan.keeps:
            self._keep(keep)
        for opened in plan.opens:
            self._open(opened)
        for grown in plan.grows:
            self._grow(grown)

    def _keep(self, keep: Keep) -> None:
        if keep.snapshot >= 0:
            self._pools.keep(keep.slot, keep.snapshot)
        if keep.copy >= 0:
            self._pools.copy_block(keep.block, keep.copy)

    def _open(self, opened: Open) -> None:
        self._tables[opened.slot, : len(opened.blocks)] = opened.blocks
        if opened.restore >= 0:
            self._pools.restore(opened.restore, opened.slot)
        else:
            self._pools.clear(opened.slot)
        if opened.tail >= 0:
            place = opened.cached_tokens // self._block_tokens
            self._pools.copy_block(opened.tail, opened.blocks[place])

    def _grow(self, grown: Grow) -> None:
        end = grown.start + len(grown.blocks)
        self._tables[grown.slot, grown.start : end] = grown.blocks
