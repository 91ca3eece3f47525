"""DSpark: drafts a block of tokens at once from what layers of the target left on its streams.

Context: of every target row the tapped means of streams become, by one projection and a norm, a row
of each stage's window. Block: [next token, noise …] at the positions after the context, whose rows
see the window before them and one another both ways. The stages' output gives logits; then, token
by token, those of what followed the one before are added (Markov), and a confidence is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.embedding import Embedding
from dgpp.models.layers.extended import extended
from dgpp.models.layers.hyper import Streams
from dgpp.models.layers.workspace import Workspace
from dgpp.models.shard import Split
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Logits, Matrix, Norm, Rows, Tensor

F32Array = npt.NDArray[np.float32]
I32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DSparkShape:
    """`taps` are the target's layers, `block` the tokens drafted at once, `noise` what stands for
    the unknown ones, `rank` that of the Markov term."""

    hidden: int
    streams: int
    vocab: int
    taps: tuple[int, ...]
    block: int
    noise: int
    rank: int
    eps: float

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        return (
            ("dspark mean", self.hidden),
            ("dspark taps", len(self.taps) * self.hidden),
            ("dspark context", self.hidden),
            ("dspark code", self.rank),
            ("dspark joined", self.hidden + self.rank),
            ("dspark confidence", 1),
        )


@dataclass(frozen=True, slots=True)
class DSparkNames:
    """Modules of the first stage that take the context in, and of the last that make drafts."""

    merge: str
    context_norm: str
    output_norm: str
    markov_from: str
    markov_to: str
    confidence: str


class Stage(Protocol):
    """A layer of the drafter."""

    def extend(self, rows: Rows, work: Workspace, context: Tensor) -> None:
        """`context` rows become rows of the stage's window."""

    def forward_block(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """Rows of a block, on the residual; they are not kept."""


@dataclass(frozen=True, slots=True)
class DraftedBlock:
    """Tokens [block], the logits that each was taken from [block, V], and how sure the drafter is
    of each [block], before the sigmoid."""

    tokens: I32Array
    logits: F32Array
    confidence: F32Array


class DSpark:
    """A drafter within its target, whose embedding, head and workspace it shares."""

    def __init__(
        self,
        source: WeightSource,
        shape: DSparkShape,
        names: DSparkNames,
        stages: Sequence[Stage],
        streams: Streams,
        stored: Format,
    ) -> None:
        self.shape = shape
        self._stages, self._streams = stages, streams
        hidden, rank = shape.hidden, shape.rank
        self._own = len(source.shard.span(Split.VOCABULARY, shape.vocab, names.markov_to))

        def matrix(linear: Linear) -> Matrix:
            return source.matrix("draft", [linear])

        self._merge = matrix(Linear(names.merge, hidden, len(shape.taps) * hidden, stored))
        self._from = matrix(Linear(names.markov_from, shape.vocab, rank))
        self._to = matrix(Linear(names.markov_to, shape.vocab, rank, split=Split.VOCABULARY))
        self._confidence = matrix(Linear(names.confidence, 1, hidden + rank))
        self._context_norm, self._norm = (
            Norm(source.vector("draft", f"{name}.weight", hidden), shape.eps)
            for name in (names.context_norm, names.output_norm)
        )

    def prepare(self, ops: Backend, work: Workspace) -> None:
        """`work` is the target's; its stages are prepared by the model."""
        self._ops, self._work = extended(ops), work
        self._logits = ops.logits(self.shape.block, self._own)

    def tap(self, layer: int, rows: Rows, work: Workspace) -> None:
        """Take in the target's streams at `layer`, where it is one of the shape's taps."""
        shape = self.shape
        if layer not in shape.taps:
            return
        ops, mean = self._ops, work.extra["dspark mean"]
        ops.mean_streams(rows, work.streams, shape.streams, mean)
        at = shape.taps.index(layer) * shape.hidden
        ops.copy(rows, mean, work.extra["dspark taps"], at=at)

    def extend(self, rows: Rows) -> None:
        """The target's rows, all tapped, become context."""
        ops, held = self._ops, self._work.extra
        mean, context = held["dspark mean"], held["dspark context"]
        ops.linear(rows, held["dspark taps"], self._merge, mean)
        ops.norm(rows, mean, self._context_norm, context)
        for stage in self._stages:
            stage.extend(rows, self._work, context)

    def draft(
        self,
        rows: Rows,
        place: tuple[int, int],
        token: int,
        embedding: Embedding,
        score: Callable[[Sequence[int], Logits], None],
        whole: Callable[[Logits, int], F32Array],
    ) -> DraftedBlock:
        """The block after `token`, which stands at `place`: a slot and a position. `score` makes
        logits of the block's rows, as `logits` does with a head; `whole(logits, count)` reads rows
        of logits of all ranks. Overwrites `rows`."""
        ops, work, block = self._ops, self._work, self.shape.block
        self._fill(rows, place, [token, *[self.shape.noise] * (block - 1)])
        embedding.forward(ops, rows, work, work.x)
        self._streams.enter(ops, rows, work)
        for stage in self._stages:
            stage.forward_block(ops, rows, work)
        self._streams.leave(ops, rows, work)
        score(range(block), self._logits)
        logits = whole(self._logits, block)
        tokens = [token]
        for drafted in range(block):
            self._fill(rows, place, tokens[-1:])
            ops.embed(rows, self._from, work.extra["dspark code"])
            ops.head(work.extra["dspark code"], [0], None, self._to, self._logits)
            logits[drafted] += whole(self._logits, 1)[0]
            # Of equal ones the first: the lower id.
            tokens.append(int(logits[drafted].argmax()))
        confidence = self._sure(rows, place, tokens[:-1])
        return DraftedBlock(np.array(tokens[1:], np.int32), logits, confidence)

    def logits(self, index: Sequence[int], head: Matrix, out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows of the last block, without what follows
        from the tokens before them."""
        self._ops.head(self._work.x, index, self._norm, head, out)

    def _sure(self, rows: Rows, place: tuple[int, int], before: Sequence[int]) -> F32Array:
        """Of each draft, from its row ahead of the output norm and the token before it."""
        ops, work = self._ops, self._work
        code, joined = work.extra["dspark code"], work.extra["dspark joined"]
        self._fill(rows, place, before)
        ops.embed(rows, self._from, code)
        ops.join(rows, work.x, code, joined)
        ops.linear(rows, joined, self._confidence, work.extra["dspark confidence"])
        return ops.read(work.extra["dspark confidence"], rows.count)[:, 0]

    def _fill(self, rows: Rows, place: tuple[int, int], tokens: Sequence[int]) -> None:
        slot, position = place
        rows.count = count = len(tokens)
        rows.tokens[:count] = tokens
        rows.positions[:count] = np.arange(position, position + count)
        rows.slots[:count] = slot
        self._ops.begin(rows)
