"""The token embedding, whole on every rank or shared out by the vocabulary."""

from __future__ import annotations

from dgpp.models.layers.workspace import Workspace
from dgpp.models.shard import Split
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Rows, Tensor


class Embedding:
    """out[r] = the row of token r. `matrix` holds the ids `held`."""

    def __init__(self, source: WeightSource, name: str, vocab: int, hidden: int) -> None:
        shard = source.shard
        self._split = shard.world > 1 and shard.split_embedding
        split = Split.VOCABULARY if self._split else Split.NONE
        self.held = shard.span(split, vocab, name)
        self.matrix = source.matrix("embedding", [Linear(name, vocab, hidden, split=split)])

    def forward(self, ops: Backend, rows: Rows, work: Workspace, out: Tensor) -> None:
        if not self._split:
            ops.embed(rows, self.matrix, out)
            return
        ops.embed(rows, self.matrix, work.fold.target, first=self.held.start)
        work.fold.gather(rows, out)
