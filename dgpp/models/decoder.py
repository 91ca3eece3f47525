"""What the families of one residual stream share: embedding, layers, final norm, head, drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dgpp.checkpoint.formats import BF16, Format
from dgpp.models.layers.draft_scores import DraftScores, Scored
from dgpp.models.layers.dspark import DraftedBlock, DSpark
from dgpp.models.layers.embedding import Embedding
from dgpp.models.layers.extended import extended
from dgpp.models.layers.hyper import Streams
from dgpp.models.layers.mtp import DraftLevel, Layer
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.shard import Split
from dgpp.models.sources import Linear, WeightSource
from dgpp.net.collective import Collective
from dgpp.state.declaration import StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, F32Array, Logits, Matrix, Norm, Rows, Tensor


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a decoder: sizes and tensors. Without `head` the embedding is the head too,
    without `norm` there is none before it; `plus` is added to the final norm's weights."""

    vocab: int
    hidden: int
    eps: float
    embedding: str = "model.embed_tokens"
    norm: str = "model.norm.weight"
    head: str = "lm_head"
    head_format: Format = BF16
    plus: float = 0.0


class Decoder(ABC):
    """A forward pass over ragged rows. A family sets `layers`, `drafts`, `state`, `workspace` and
    `rotary` while it is built, and gives its layers their state in `prepare_layers`. One with a
    residual of several streams sets `streams` too.

    The head gives logits of the ids `vocabulary`: all of them, or a rank's slice.
    """

    layers: Sequence[Layer]
    drafts: Sequence[DraftLevel]
    state: StateDeclaration
    workspace: WorkspaceShape
    rotary: int
    """Values of the rotary tables per position."""
    streams: Streams | None = None
    drafter: DSpark | None = None
    """What drafts blocks at once, where the family has it and drafts are loaded."""
    draft_streams = False
    """Whether drafts continue from the residual's streams, and have as many."""
    _draft_scores: DraftScores | None = None
    tail = 0
    """Tokens at a prompt's end which are all that bounded prefill gives to later layers; 0 where
    every layer takes every token."""

    def __init__(self, source: WeightSource, ends: Ends) -> None:
        self.embedding = Embedding(source, ends.embedding, ends.vocab, ends.hidden)
        self.vocabulary = source.shard.span(Split.VOCABULARY, ends.vocab, "lm_head")
        self._norm: Norm | None = None
        if ends.norm:
            norm = source.vector("norms", ends.norm, ends.hidden, plus=ends.plus)
            self._norm = Norm(norm, ends.eps)
        self._tied = not ends.head
        self.hidden = ends.hidden
        self.head: Matrix = None
        if ends.head:
            sizes = (ends.vocab, ends.hidden, ends.head_format)
            self.head = source.matrix("head", [Linear(ends.head, *sizes, split=Split.VOCABULARY)])

    def prepare(
        self,
        backend: Backend,
        pools: StatePools,
        positions: int,
        collective: Collective | None = None,
    ) -> None:
        """Allocate activations and tables; `pools` holds what `state` declares."""
        self.ops = backend
        if self._tied:
            own, held = self.vocabulary, self.embedding.held
            self.head = backend.cut(self.embedding.matrix, own.start - held.start, len(own))
        self.work = Workspace(backend, self.workspace, collective)
        self.draft_work = self.work if self.draft_streams else self.work.of_one_stream()
        self.prepare_layers(backend, pools, positions)
        for draft in self.drafts:
            draft.prepare(backend)
        if self._draft_scores is not None:
            self._draft_scores.prepare(backend, self.head)

    def limit_drafts(self, ids: Sequence[int]) -> None:
        """Score only `ids`, ascending, in drafts; all others are −∞ there. Before `prepare`."""
        self._draft_scores = DraftScores(ids, self.vocabulary)

    @abstractmethod
    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        """Give every layer, those of draft levels too, its tables and state."""

    def forward(self, rows: Rows, observer: Observer | None = None) -> None:
        """Run all rows; what each leaves behind goes to its slot's state."""
        ops, work = self.ops, self.work
        self.embedding.forward(ops, rows, work, work.x)
        if self.streams is not None:
            self.streams.enter(ops, rows, work)
        if observer is not None:
            observer.hidden(0, rows, self.residual)
        for index, layer in enumerate(self.layers):
            layer.forward(ops, rows, work, observer)
            if observer is not None:
                observer.hidden(index + 1, rows, self.residual)
        if self.streams is not None:
            self.streams.leave(ops, rows, work)

    @property
    def residual(self) -> Tensor:
        """What layers add to."""
        return self.work.streams if self.workspace.streams else self.work.x

    def forward_layer(self, index: int, rows: Rows, observer: Observer | None = None) -> None:
        """Run one layer alone on what the residual holds, its state included."""
        self.layers[index].forward(self.ops, rows, self.work, observer)

    def forward_draft(
        self, level: int, rows: Rows, hidden: Tensor, observer: Observer | None = None
    ) -> None:
        """Draft row q from `hidden` of position q and `rows.tokens`, the tokens at q + 1."""
        self.drafts[level].forward(rows, hidden, self.embedding, self.draft_work, observer)

    def draft_logits(self, level: int, index: Sequence[int], out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows of the level's last forward."""
        self._scored(self.drafts[level], index, out)

    def draft_block(
        self,
        rows: Rows,
        slot: int,
        position: int,
        token: int,
        whole: Callable[[Logits, int], F32Array],
    ) -> DraftedBlock:
        """What `drafter` drafts after `token`, which stands at `position` of `slot`, behind all its
        rows so far. `whole(logits, count)` reads rows of logits of all ranks. Overwrites `rows`.
        """
        drafter = self.drafter
        assert drafter is not None, "no block drafter was loaded"
        score = partial(self._scored, drafter)
        return drafter.draft(rows, (slot, position), token, self.embedding, score, whole)

    def _scored(self, drafter: Scored, index: Sequence[int], out: Logits) -> None:
        """Logits of rows `index` of a drafter, of the ids that drafts are limited to."""
        if self._draft_scores is not None:
            self._draft_scores.logits(drafter, index, out)
        else:
            drafter.logits(index, self.head, out)

    def final_hidden(self, rows: Rows, out: Tensor) -> None:
        """out[r] = the last forward's row r as the head takes it: after the final norm."""
        if self._norm is None:
            extended(self.ops).copy(rows, self.work.x, out)
        else:
            self.ops.norm(rows, self.work.x, self._norm, out)

    @property
    def draft_width(self) -> int:
        """Values of a row that drafts continue from."""
        return self.workspace.streams * self.hidden if self.draft_streams else self.hidden

    def draft_hidden(self, rows: Rows, out: Tensor) -> None:
        """out[r] = what the first draft level continues from, of the last forward's row r."""
        if self.draft_streams:
            extended(self.ops).copy(rows, self.work.streams, out)
        else:
            self.final_hidden(rows, out)

    def logits(self, index: Sequence[int], out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows `index` of the last forward."""
        self.ops.head(self.work.x, index, self._norm, self.head, out)
