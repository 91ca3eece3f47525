"""Drives an engine over a prompt as it is served, and keeps what passes by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.engine.model_engine import ModelEngine
from dgpp.models.layers.dspark import DraftedBlock
from dgpp.models.layers.extended import extended
from dgpp.sample.params import SamplingParams
from dgpp.sample.tables import allocate_tables
from dgpp.sched.plan import DecodeRow, Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids
from kernels_numba.backend import Routes, Rows, Tensor
from kernels_numba.extended import Selection
from kernels_numba.tables import NgramHash, Ngrams

F32Array = npt.NDArray[np.float32]
SLOT = 1
"""Not the first, so that a slot mistaken for a row shows."""


class Taps:
    """Copies hidden states and expert choices, row chunks in the order they were computed."""

    def __init__(self, engine: ModelEngine) -> None:
        self._backend = engine.backend
        self._hidden: dict[int, list[F32Array]] = defaultdict(list)
        self._ids: dict[int, list[npt.NDArray[np.int32]]] = defaultdict(list)
        self._weights: dict[int, list[F32Array]] = defaultdict(list)
        self._selected: dict[int, list[npt.NDArray[np.int32]]] = defaultdict(list)
        self._gaps: dict[int, list[F32Array]] = defaultdict(list)
        self._ngrams: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
        self.hashes: list[NgramHash] = []
        """How each table's rows are found, in the order of the layers that look them up."""

    def hidden(self, index: int, rows: Rows, x: Tensor) -> None:
        self._hidden[index].append(self._backend.read(x, rows.count))

    def routed(self, layer: int, rows: Rows, routes: Routes) -> None:
        ids, weights = self._backend.read_routes(routes, rows.count)
        self._ids[layer].append(ids)
        self._weights[layer].append(weights)
        self._gaps[layer].append(routes.gaps[: rows.count].copy())

    def selected(self, layer: int, rows: Rows, selection: Selection) -> None:
        ops = extended(self._backend)
        self._selected[layer].append(ops.read_selection(selection, rows.count))

    def looked_up(self, rows: Rows, ngrams: Ngrams) -> None:
        if id(ngrams) not in self._ngrams:
            self.hashes.append(ngrams.how)
        self._ngrams[id(ngrams)].append(extended(self._backend).read_ngrams(ngrams, rows.count))

    def ngrams(self) -> list[npt.NDArray[np.int64]]:
        """Per table int64 [T, heads]: its rows that the tokens name; in the order of `hashes`."""
        return [np.concatenate(held) for held in self._ngrams.values()]

    def selections(self) -> dict[int, npt.NDArray[np.int32]]:
        """Per sparse layer int32 [T, top], -1 beyond what was selected."""
        return {layer: np.concatenate(held) for layer, held in sorted(self._selected.items())}

    def hidden_states(self) -> list[F32Array]:
        return [np.concatenate(self._hidden[index]) for index in sorted(self._hidden)]

    def routes(self, layer: int) -> tuple[npt.NDArray[np.int32], F32Array]:
        return np.concatenate(self._ids[layer]), np.concatenate(self._weights[layer])

    def gaps(self, layer: int) -> F32Array:
        """How far the last expert chosen stood above the first left out; of the float32 backend."""
        return np.concatenate(self._gaps[layer])

    @property
    def moe_layers(self) -> list[int]:
        return sorted(self._ids)


class Trace:
    """One prompt through prefill chunks, then cached decode steps that are fed `answer`, token by
    token: so a pick that differs from it changes nothing after it. `chain` drafts, one from the
    other, are made after the prompt; behind each of `anchors`, a position of the prompt and the
    token after it, a block at once."""

    def __init__(
        self,
        engine: ModelEngine,
        ids: npt.NDArray[Any],
        answer: npt.NDArray[Any],
        chain: int = 0,
        anchors: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._engine = engine
        self._chain, self._anchors = chain, anchors
        self.blocks: list[DraftedBlock] = []
        self._ids = ids.astype(np.int32)
        self._answer = answer
        self._steps = len(answer)
        limits = engine.limits
        self._tables = allocate_tables(limits.slots, limits.vocab_size)
        self._chunk_logits = engine.backend.logits(limits.chunk_limit, len(engine.model.vocabulary))
        self.taps = Taps(engine)
        self.draft_taps = Taps(engine)
        self.logits: list[F32Array] = []
        self.final_norm: list[F32Array] = []
        self.draft_logits: list[list[F32Array]] = []
        self.draft_hidden: list[list[F32Array]] = []
        self._last: F32Array = np.zeros((1, 0), np.float32)
        self.chain_ids: list[int] = []
        self.chain_logits: list[F32Array] = []
        self.greedy: list[int] = []
        self.greedy_logits: list[F32Array] = []

    def open_slot(self) -> Open:
        """The request, in blocks dealt backwards so that their order is no accident."""
        limits = self._engine.limits
        tokens = len(self._ids) + self._steps
        needed = -(-tokens // limits.block_tokens)
        blocks = tuple(range(limits.blocks - 1, limits.blocks - 1 - needed, -1))
        sampling = SamplingParams(temperature=0.0)
        request = Submit("check-0", pack_ids(self._ids), max(1, self._steps), sampling)
        return Open(SLOT, request, blocks)

    def run(self) -> None:
        engine, total = self._engine, len(self._ids)
        engine.observer = self.taps
        engine.launch(Plan(0, opens=(self.open_slot(),)), self._tables)
        step = engine.limits.chunk_limit
        for start in range(0, total, step):
            count = min(step, total - start)
            chunk = PrefillChunk(SLOT, start, count, last=start + count == total)
            engine.launch(Plan(1 + start, prefills=(chunk,)), self._tables)
            if chunk.last and self._steps:
                self._pick(1 + start)
            self._read_chunk(start, count)
        engine.observer = None
        if self._chain:
            self.draft_chain(self._chain)
        for position in range(total, total + self._steps - 1):
            row = DecodeRow(SLOT, position, int(self._answer[position - total]))
            engine.launch(Plan(total + position, decodes=(row,)), self._tables)
            self._pick(total + position)

    def _pick(self, step: int) -> None:
        chosen = self._engine.collect(step)
        self.greedy.append(int(chosen.ids[0, 0]))
        self.greedy_logits.append(self._engine.full_rows(step, [0])[0])

    def _read_chunk(self, start: int, count: int) -> None:
        engine = self._engine
        rows, model = engine.rows, engine.model
        logits = self._chunk_logits
        model.logits(range(count), logits)
        self.logits.append(engine.read_logits(logits, count))
        hidden = engine.backend.tensor(model.hidden, wide=True)
        model.final_hidden(rows, hidden)
        self.final_norm.append(engine.backend.read(hidden, count))
        hidden = engine.backend.tensor(model.draft_width, wide=True)
        model.draft_hidden(rows, hidden)
        self._last = engine.backend.read(hidden, count)[-1:]
        for level in range(len(model.drafts)):
            self._draft_chunk(level, start, count, hidden)
            hidden = model.drafts[level].hidden
        for position, token in self._anchors:
            if start <= position < start + count:
                self._draft_block(position + 1, token)

    def _draft_block(self, position: int, token: int) -> None:
        """The block whose first token is known and stands at `position`."""
        engine, model = self._engine, self._engine.model
        if model.drafter is not None:
            block = model.draft_block(engine.rows, SLOT, position, token, engine.read_logits)
            self.blocks.append(block)

    def _draft_chunk(self, level: int, start: int, count: int, hidden: Tensor) -> None:
        """Level `level` on the chunk's rows: row q from `hidden` of q and token q + 1 + level."""
        engine = self._engine
        rows, model, logits = engine.rows, engine.model, self._chunk_logits
        if level == len(self.draft_logits):
            self.draft_logits.append([])
            self.draft_hidden.append([])
        following = self._ids[start + 1 + level : start + count + 1 + level]
        rows.count = following.size
        if not rows.count:
            return
        rows.tokens[: rows.count] = following
        engine.backend.begin(rows)
        model.forward_draft(level, rows, hidden, self.draft_taps)
        model.draft_logits(level, range(rows.count), logits)
        self.draft_logits[level].append(engine.read_logits(logits, rows.count))
        drafted = model.drafts[level].hidden
        self.draft_hidden[level].append(engine.backend.read(drafted, rows.count))

    def draft_chain(self, length: int) -> None:
        """After the prompt, `length` drafts one from the other: the first from the last hidden
        state and the answer's first token, a further one from the draft before and its token."""
        engine = self._engine
        rows, model, logits = engine.rows, engine.model, self._chunk_logits
        hidden = engine.backend.tensor(model.draft_width, wide=True)
        engine.backend.write(hidden, self._last)
        token = int(self._answer[0])
        for drafted in range(length):
            rows.count = 1
            rows.slots[0], rows.positions[0] = SLOT, len(self._ids) - 1 + drafted
            rows.tokens[0] = token
            engine.backend.begin(rows)
            model.forward_draft(0, rows, hidden)
            model.draft_logits(0, [0], logits)
            self.chain_logits.append(engine.read_logits(logits, 1)[0])
            token = int(self.chain_logits[-1].argmax())
            self.chain_ids.append(token)
            hidden = model.drafts[0].hidden


def layer_outputs(
    engine: ModelEngine, trace: Trace, inputs: npt.NDArray[Any]
) -> tuple[list[F32Array], Taps]:
    """Each layer's output on the reference's own input: inputs [L + 1, T, …] → L arrays [T, width],
    and the expert choices made on the way."""
    layers, total = inputs.shape[0] - 1, inputs.shape[1]
    rows, step = engine.rows, engine.limits.chunk_limit
    engine.forward(Plan(0, closes=(SLOT,), opens=(trace.open_slot(),)))
    parts: list[list[F32Array]] = [[] for _ in range(layers)]
    taps = Taps(engine)
    # Chunk by chunk: a layer may attend to what the one before it selected for the same rows.
    for start in range(0, total, step):
        rows.count = min(step, total - start)
        rows.positions[: rows.count] = np.arange(start, start + rows.count)
        rows.slots[: rows.count] = SLOT
        engine.backend.begin(rows)
        for layer in range(layers):
            chunk = inputs[layer, start : start + rows.count].astype(np.float32)
            residual = engine.model.residual
            engine.backend.write(residual, chunk.reshape(rows.count, -1))
            engine.model.forward_layer(layer, rows, taps)
            parts[layer].append(engine.backend.read(residual, rows.count))
    return [np.concatenate(held) for held in parts], taps
