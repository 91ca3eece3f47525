"""GLM-4.7's forward pass over ragged rows."""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.models.glm4_moe.config import Glm4MoeConfig
from dgpp.models.glm4_moe.draft import Glm4MoeDraft
from dgpp.models.glm4_moe.layer import Glm4MoeLayer, plane, workspace_shape
from dgpp.models.layers.embedding import Embedding
from dgpp.models.layers.rope import rotary_angles
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.shard import Split
from dgpp.models.sources import Linear, WeightSource
from dgpp.net.collective import Collective
from dgpp.state.declaration import StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Logits, Matrix, Norm, Rows, Tensor


class Glm4MoeModel:
    """Embedding, layers, final norm, head; `drafts` loads the draft layers beside them.

    The head gives logits of the ids `vocabulary`: all of them, or a rank's slice.
    """

    def __init__(self, config: Glm4MoeConfig, source: WeightSource, *, drafts: bool) -> None:
        self._config = config
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embedding = Embedding(source, "model.embed_tokens", vocab, hidden)
        self.vocabulary = source.shard.span(Split.VOCABULARY, vocab, "lm_head")
        self._layers = [
            Glm4MoeLayer(config, source, layer) for layer in range(config.num_hidden_layers)
        ]
        self._norm_weight = source.vector("norms", "model.norm.weight", hidden)
        self.head: Matrix = None
        if config.tie_word_embeddings:
            source.ignore("lm_head.weight")
        else:
            stored = config.format("lm_head")
            head = Linear("lm_head", vocab, hidden, stored, split=Split.VOCABULARY)
            self.head = source.matrix("head", [head])
        extra = source if drafts else source.unloaded()
        first = config.num_hidden_layers
        built = [
            Glm4MoeDraft(config, extra, first + level)
            for level in range(config.num_nextn_predict_layers)
        ]
        self.drafts: Sequence[Glm4MoeDraft] = built if drafts else []
        self.state = StateDeclaration(
            tuple(plane(config, layer, source.shard) for layer in range(first + len(self.drafts)))
        )
        self.workspace = workspace_shape(config, source.shard, drafts=bool(self.drafts))

    def prepare(
        self,
        backend: Backend,
        pools: StatePools,
        positions: int,
        collective: Collective | None = None,
    ) -> None:
        """Allocate activations and tables; `pools` holds what `state` declares."""
        config = self._config
        self._ops = backend
        if config.tie_word_embeddings:
            own, held = self.vocabulary, self.embedding.held
            self.head = backend.cut(self.embedding.matrix, own.start - held.start, len(own))
        self._norm = Norm(self._norm_weight, config.rms_norm_eps)
        self.work = Workspace(backend, self.workspace, collective)
        angles = backend.rotary_table(rotary_angles(positions, config.rotated, config.rope_theta))
        for layer, held in zip(self._layers, pools.planes, strict=False):
            layer.prepare(angles, held)
        for draft, held in zip(self.drafts, pools.planes[len(self._layers) :], strict=True):
            draft.prepare(backend, angles, held)

    def forward(self, rows: Rows, observer: Observer | None = None) -> None:
        """Run all rows; keys and values of each go to its slot's blocks."""
        ops, work = self._ops, self.work
        self.embedding.forward(ops, rows, work, work.x)
        if observer is not None:
            observer.hidden(0, rows, work.x)
        for index, layer in enumerate(self._layers):
            layer.forward(ops, rows, work, observer)
            if observer is not None:
                observer.hidden(index + 1, rows, work.x)

    def forward_layer(self, index: int, rows: Rows, observer: Observer | None = None) -> None:
        """Run one layer alone on what `work.x` holds, keys and values included."""
        self._layers[index].forward(self._ops, rows, self.work, observer)

    def forward_draft(
        self, level: int, rows: Rows, hidden: Tensor, observer: Observer | None = None
    ) -> None:
        """Draft row q from `hidden` of position q and `rows.tokens`, the tokens at q + 1."""
        self.drafts[level].forward(rows, hidden, self.embedding, self.work, observer)

    def draft_logits(self, level: int, index: Sequence[int], out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows of the level's last forward."""
        self.drafts[level].logits(index, self.head, out)

    def final_hidden(self, rows: Rows, out: Tensor) -> None:
        """out[r] = the last forward's row r after the final norm."""
        self._ops.norm(rows, self.work.x, self._norm, out)

    def logits(self, index: Sequence[int], out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows `index` of the last forward."""
        self._ops.head(self.work.x, index, self._norm, self.head, out)
