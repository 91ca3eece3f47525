"""Qwen3.8-Flash-Next's draft level: a layer of its own on branches that hidden state and token
make."""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.models.layers.branches import BranchMixer, BranchShape
from dgpp.models.layers.embedding import Embedding
from dgpp.models.layers.extended import extended
from dgpp.models.layers.mtp import Layer
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Logits, Matrix, Norm, Rows, Tensor


class BranchLevel:
    """Branch i begins as fc_hidden(norm(hidden))_i + fc_embedding(norm(embedding)), the hidden norm
    going over all branches; then the layer, and a mixer of its own before the target's head.

    `hidden` is what a next level continues from: the branches behind the layer, as the target's are
    what the first one continues from. The norms' weights are stored less one.
    """

    def __init__(self, source: WeightSource, layer: Layer, shape: BranchShape) -> None:
        self._layer, self._shape = layer, shape
        embedding, hidden = (
            source.vector("draft", f"mtp.pre_fc_norm_{part}.weight", size, plus=1.0)
            for part, size in (("embedding", shape.width), ("hidden", shape.whole))
        )
        self._embedding_norm, self._hidden_norm = (
            Norm(weight, shape.eps) for weight in (embedding, hidden)
        )
        self._of_embedding, self._of_hidden = (
            source.matrix("draft", [Linear(f"mtp.fc_{part}", shape.width, shape.width)])
            for part in ("embedding", "hidden")
        )
        self._mixer = BranchMixer(source, "mtp.hyper_connection_mixer", shape)

    def prepare(self, ops: Backend) -> None:
        """Allocate the level's rows; its layer is prepared by the model."""
        shape = self._shape
        self._ops = extended(ops)
        self._embedded, self._told, self._part, self._sum, self._mixed = (
            ops.tensor(shape.width, wide=True) for _ in range(5)
        )
        self._normed = ops.tensor(shape.whole, wide=True)
        self.hidden: Tensor = ops.tensor(shape.whole, wide=True)

    def forward(
        self,
        rows: Rows,
        hidden: Tensor,
        embedding: Embedding,
        work: Workspace,
        observer: Observer | None = None,
    ) -> None:
        """`rows.tokens` follow their positions."""
        ops, shape = self._ops, self._shape
        embedding.forward(ops, rows, work, self._embedded)
        ops.norm(rows, self._embedded, self._embedding_norm, work.normed)
        ops.linear(rows, work.normed, self._of_embedding, self._told)
        ops.norm(rows, hidden, self._hidden_norm, self._normed)
        for branch in range(shape.branches):
            at = branch * shape.width
            source, target = (shape.whole, at), (shape.width, 0)
            ops.copy_heads(rows, self._normed, source, 1, shape.width, self._part, target)
            ops.copy(rows, self._told, self._sum)
            ops.linear(rows, self._part, self._of_hidden, self._sum, add=True)
            ops.copy(rows, self._sum, work.streams, at=at)
        self._layer.forward(ops, rows, work, observer)
        ops.copy(rows, work.streams, self.hidden)
        self._mixer.leave(ops, rows, work)
        ops.copy(rows, work.x, self._mixed)

    def logits(self, index: Sequence[int], head: Matrix, out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows `index` of the last forward."""
        self._ops.head(self._mixed, index, None, head, out)
