"""Which of a block's candidates follow one another best.

The score of candidate c after predecessor p on row h is logit(c) + ⟨pred[p] · (P h), succ[c]⟩. The
first predecessor is the anchor; the walk takes the best candidate of each row in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dgpp.checkpoint.formats import BF16_BARE
from dgpp.models.dflash2.config import DFlash2Config
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Rows, Tensor
from kernels_numba.extended import ExtendedBackend

F32Array = npt.NDArray[np.float32]
I32Array = npt.NDArray[np.int32]


class Selector:
    """The codebooks, whole on every rank, so that all ranks walk alike."""

    def __init__(self, config: DFlash2Config, source: WeightSource) -> None:
        name, vocab = "candidate_selector", config.vocab_size
        self._rank = config.dflash_config.selector_rank
        projection = Linear(f"{name}.hidden_projection", self._rank, config.hidden_size)
        self._projection = source.matrix("selector", [projection])
        sizes = (vocab, self._rank, BF16_BARE)
        self._predecessors, self._successors = (
            source.matrix("selector", [Linear(f"{name}.{kind}_codebook", *sizes)])
            for kind in ("predecessor", "successor")
        )

    def prepare(self, ops: ExtendedBackend) -> None:
        self._ops = ops
        self._codes = ops.tensor(self._rank, wide=True)

    def project(self, rows: Rows, hidden: Tensor, out: Tensor) -> F32Array:
        """float32 [rows, rank]: P h of the block's rows, on the host."""
        self._ops.linear(rows, hidden, self._projection, out)
        return self._ops.read(out, rows.count)

    def _rows_of(self, rows: Rows, book: object, tokens: npt.NDArray[np.int32]) -> F32Array:
        """float32 [len(tokens), rank]: rows of a codebook, a step's capacity at a time."""
        parts = []
        for first in range(0, tokens.size, rows.capacity):
            some = tokens[first : first + rows.capacity]
            rows.count = some.size
            rows.tokens[: rows.count] = some
            self._ops.begin(rows)
            self._ops.embed(rows, book, self._codes)
            parts.append(self._ops.read(self._codes, rows.count))
        return np.concatenate(parts)

    def walk(
        self, rows: Rows, anchor: int, projected: F32Array, ids: I32Array, logits: F32Array
    ) -> tuple[I32Array, F32Array]:
        """Of drafted rows' P h [n, rank] and candidates [n, k] (logit descending, then id): the
        tokens taken [n] and the scores of all candidates after them [n, k]. Overwrites `rows`."""
        count, width = ids.shape
        successors = self._rows_of(rows, self._successors, ids.reshape(-1))
        successors = successors.reshape(count, width, self._rank)
        chain: Sequence[int] = [anchor]
        taken, scores = np.zeros(count, np.int32), np.zeros((count, width), np.float32)
        for step in range(count):
            code = self._rows_of(rows, self._predecessors, np.array(chain[-1:], np.int32))[0]
            edges = successors[step] @ (code * projected[step])
            scores[step] = logits[step] + edges
            # The first of the best: candidates of equal score go by logit, then by id.
            taken[step] = ids[step, int(scores[step].argmax())]
            chain = [*chain, int(taken[step])]
        return taken, scores
