"""A multi-token-prediction level: from a hidden state and the next token to the one after that.

Row q: [norm(embedding of token q + 1) | norm(hidden of q)] → a projection → a layer → a norm → the
target's head. The hidden of the first level is the target's after its final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.embedding import Embedding
from dgpp.models.layers.extended import extended
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Logits, Matrix, Norm, Rows, Tensor


class Layer(Protocol):
    """One layer on the residual."""

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        """work.x += what the layer adds."""


class DraftLevel(Protocol):
    """One draft after another: a level of its own, or one that continues from its own hidden."""

    hidden: Tensor
    """What the next draft continues from."""

    def prepare(self, ops: Backend) -> None:
        """Allocate the level's rows; its layer is prepared by the model."""

    def forward(
        self,
        rows: Rows,
        hidden: Tensor,
        embedding: Embedding,
        work: Workspace,
        observer: Observer | None = None,
    ) -> None:
        """Row q from `hidden` of position q and `rows.tokens`, the tokens at q + 1."""

    def logits(self, index: Sequence[int], head: Matrix, out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows `index` of the last forward."""


@dataclass(frozen=True, slots=True)
class MtpNames:
    """Tensors of a level beside its layer's: norms without `.weight`, and the projection."""

    embedding_norm: str
    hidden_norm: str
    merge: str
    output_norm: str


class MtpLevel:
    """`hidden` is what a next level continues from: the layer's output after the level's norm, or
    before it where `raw`. `plus` is added to the norms' weights."""

    def __init__(
        self,
        source: WeightSource,
        names: MtpNames,
        layer: Layer,
        hidden: int,
        eps: float,
        merge: Format,
        *,
        raw: bool = False,
        plus: float = 0.0,
    ) -> None:
        embedding, before, output = (
            Norm(source.vector("draft", f"{name}.weight", hidden, plus=plus), eps)
            for name in (names.embedding_norm, names.hidden_norm, names.output_norm)
        )
        self._embedding_norm, self._hidden_norm, self._output_norm = embedding, before, output
        self._merge = source.matrix("draft", [Linear(names.merge, hidden, 2 * hidden, merge)])
        self._width, self._raw = hidden, raw
        self._layer = layer

    def prepare(self, ops: Backend) -> None:
        """Allocate the level's rows; its layer is prepared by the model."""
        self._ops = ops
        self._extended = extended(ops) if self._raw else None
        self._embedded = ops.tensor(self._width, wide=True)
        self._normed = ops.tensor(self._width)
        self._joined = ops.tensor(2 * self._width)
        self.hidden: Tensor = ops.tensor(self._width, wide=True)

    def forward(
        self,
        rows: Rows,
        hidden: Tensor,
        embedding: Embedding,
        work: Workspace,
        observer: Observer | None = None,
    ) -> None:
        """`rows.tokens` follow their positions."""
        ops = self._ops
        embedding.forward(ops, rows, work, self._embedded)
        ops.norm(rows, self._embedded, self._embedding_norm, work.normed)
        ops.norm(rows, hidden, self._hidden_norm, self._normed)
        ops.join(rows, work.normed, self._normed, self._joined)
        ops.linear(rows, self._joined, self._merge, work.x)
        self._layer.forward(ops, rows, work, observer)
        if self._extended is not None:
            self._extended.copy(rows, work.x, self.hidden)
        else:
            ops.norm(rows, work.x, self._output_norm, self.hidden)

    def logits(self, index: Sequence[int], head: Matrix, out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows `index` of the last forward."""
        norm = self._output_norm if self._raw else None
        self._ops.head(self.hidden, index, norm, head, out)
