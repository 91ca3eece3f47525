"""GLM-4.7's draft layer: from a position's hidden state and the next token to the one after."""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.models.glm4_moe.config import Glm4MoeConfig
from dgpp.models.glm4_moe.layer import Glm4MoeLayer
from dgpp.models.layers.embedding import Embedding
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Logits, Matrix, Norm, Plane, Rows, Tensor


class Glm4MoeDraft:
    """Row q: [enorm(embed(token q+1)) | hnorm(hidden q)] → eh_proj → layer → norm → head.

    The hidden of the first level is the target's after its final norm. Embedding and head are the
    target's: the checkpoint's copies equal them.
    """

    def __init__(self, config: Glm4MoeConfig, source: WeightSource, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        hidden, self._eps = config.hidden_size, config.rms_norm_eps
        self._embed_norm = source.vector("draft", f"{prefix}.enorm.weight", hidden)
        self._hidden_norm = source.vector("draft", f"{prefix}.hnorm.weight", hidden)
        self._output_norm = source.vector("draft", f"{prefix}.shared_head.norm.weight", hidden)
        self._merge = source.matrix(
            "draft",
            [Linear(f"{prefix}.eh_proj", hidden, 2 * hidden, config.format(f"{prefix}.eh_proj"))],
        )
        self._hidden = hidden
        self._layer = Glm4MoeLayer(config, source, layer)
        source.ignore(f"{prefix}.embed_tokens.weight")
        source.ignore(f"{prefix}.shared_head.head.weight")

    def prepare(self, ops: Backend, angles: Tensor, plane: Plane) -> None:
        self._ops = ops
        self._layer.prepare(angles, plane)
        self._embedded = ops.tensor(self._hidden, wide=True)
        self._normed = ops.tensor(self._hidden)
        self._joined = ops.tensor(2 * self._hidden)
        self.hidden: Tensor = ops.tensor(self._hidden, wide=True)

    def forward(
        self,
        rows: Rows,
        hidden: Tensor,
        embedding: Embedding,
        work: Workspace,
        observer: Observer | None = None,
    ) -> None:
        """`rows.tokens` follow their positions; `self.hidden` is the next level's input."""
        ops = self._ops
        embedding.forward(ops, rows, work, self._embedded)
        ops.norm(rows, self._embedded, Norm(self._embed_norm, self._eps), work.normed)
        ops.norm(rows, hidden, Norm(self._hidden_norm, self._eps), self._normed)
        ops.join(rows, work.normed, self._normed, self._joined)
        ops.linear(rows, self._joined, self._merge, work.x)
        self._layer.forward(ops, rows, work, observer)
        ops.norm(rows, work.x, Norm(self._output_norm, self._eps), self.hidden)

    def logits(self, index: Sequence[int], head: Matrix, out: Logits) -> None:
        """Logits [len(index), V] of rows `index` of the last forward."""
        self._ops.head(self.hidden, index, None, head, out)
