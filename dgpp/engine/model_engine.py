"""The engine that runs a model: plans in, candidates out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.agreement import require_one_model
from dgpp.engine.backends import make_backend
from dgpp.engine.base import EngineLimits
from dgpp.engine.row_selection import RowSelector
from dgpp.engine.sharded_selection import ShardedSelector, gather_slices
from dgpp.errors import CheckpointError, NumericError
from dgpp.models.account import Account
from dgpp.models.observer import Observer
from dgpp.models.plan import row_capacity
from dgpp.models.registry import Model, family_of
from dgpp.models.shard import ALONE, Shard
from dgpp.models.sources import CheckedWeights, DummyWeights, LoadedWeights
from dgpp.net.collective import Collective
from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.params import SamplingParams
from dgpp.sample.tables import allocate_tables
from dgpp.sched.plan import Open, Plan
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Logits

I32Array = npt.NDArray[np.int32]

NOT_NUMBERS = "no numbers (NaN): the weights or config.json are damaged"


@dataclass(frozen=True, slots=True)
class DummyModel:
    """A model of which only config.json is there; its weights are random."""

    config: dict[str, Any]


@dataclass(slots=True)
class _Slot:
    prompt: I32Array
    sampling: SamplingParams


class ModelEngine:
    """Implements `dgpp.engine.base.Engine` with a checkpoint's weights on the backend `backend`.

    Loading binds every tensor before it reads one: CheckpointError names what does not fit.
    `threads` are the CPU backend's, `device` is the CUDA backend's.
    `drafts` loads the draft layers too (their numbers can be checked; they do not serve yet).
    `observer`, when set, sees each layer of every forward.

    With `collective`, which has joined, the engine is one rank of a world: every method but
    `notes` is called on all ranks in the same order. CheckpointError names what ranks hold of
    different models.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | Path | DummyModel,
        limits: EngineLimits,
        threads: int,
        *,
        drafts: bool = False,
        backend: str = "cpu",
        device: int = 0,
        collective: Collective | None = None,
        embed_sharding: str = "replicated",
    ) -> None:
        if isinstance(checkpoint, Path):
            checkpoint = Checkpoint(checkpoint)
        self.limits = limits
        self.observer: Observer | None = None
        self.backend: Backend = make_backend(backend, row_capacity(limits), threads, device)
        self.collective = collective
        shard = ALONE
        if collective is not None:
            shard = Shard(collective.rank, collective.world, embed_sharding == "vocab")
        self.model, account = _load(checkpoint, self.backend, shard, drafts=drafts)
        if collective is not None:
            require_one_model(account, collective)
        self.pools = StatePools(
            self.model.state,
            self.backend,
            slots=limits.slots,
            blocks=limits.blocks,
            block_tokens=limits.block_tokens,
        )
        self.model.prepare(self.backend, self.pools, limits.position_ceiling, collective)
        width = -(-limits.position_ceiling // limits.block_tokens)
        self.rows = self.backend.rows(limits.slots, width)
        self._slots: list[_Slot | None] = [None] * limits.slots
        self._sampled: list[int] = []
        self._found: Candidates
        sampled = limits.slots * (1 + limits.max_drafts)
        self._slices = [
            Shard(rank, shard.world).vocabulary(limits.vocab_size) for rank in range(shard.world)
        ]
        own = len(self.model.vocabulary)
        self._logits = self.backend.logits(sampled, own)
        picker = self.backend.picker(sampled, own, min(limits.candidates, len(self._slices[0])))
        local = RowSelector(picker, self.model.vocabulary)
        self._selector: RowSelector | ShardedSelector = local
        if collective is not None:
            self._selector = ShardedSelector(local, collective, self._slices)

    def warm_up(self) -> None:
        """Compile or load every kernel and touch all scratch, before the first request.

        Raises CheckpointError where the model computes no numbers.
        """
        rows = self.rows
        for count in (1, min(2, rows.capacity), rows.capacity):
            rows.count = count
            rows.positions[:count] = 0
            rows.slots[:count] = 0
            rows.tokens[:count] = 0
            self.backend.begin(rows)
            self.model.forward(rows)
            self.model.logits([0], self._logits)
        self._selector.warm_up(self._logits)
        tables = allocate_tables(self.limits.slots, self.limits.vocab_size)
        greedy = SamplingParams(temperature=0.0)
        found = self._selector.select(self._logits, [0], [greedy], tables)
        if np.isnan(found.lse[0]):
            raise CheckpointError(f"the model's logits are {NOT_NUMBERS} for token 0 alone")

    def notes(self) -> list[str]:
        """Lines for the start-up log, once warm."""
        return self.backend.notes()

    def launch(self, plan: Plan, tables: SlotTables) -> None:
        self.forward(plan)
        self._found = self._select(tables)

    def collect(self, step: int) -> Candidates:
        return self._found

    def forward(self, plan: Plan) -> None:
        """Run the model over the plan's rows and leave it at that."""
        for slot in plan.closes:
            self._slots[slot] = None
        for opened in plan.opens:
            self._open(opened)
        index = self._fill(plan)
        self._sampled = plan.sampled_slots()
        if self.rows.count:
            self.backend.begin(self.rows)
            self.model.forward(self.rows, self.observer)
            if index:
                self.model.logits(index, self._logits)

    def _open(self, opened: Open) -> None:
        prompt = opened.request.prompt_ids.astype(np.int32)
        self._slots[opened.slot] = _Slot(prompt, opened.request.sampling)
        self.rows.tables[opened.slot, : len(opened.blocks)] = opened.blocks

    def _fill(self, plan: Plan) -> list[int]:
        """Write the plan's rows; the rows whose logits are sampled."""
        rows = self.rows
        index: list[int] = []
        at = 0
        for chunk in plan.prefills:
            end = at + chunk.count
            held = self._slot(chunk.slot)
            rows.tokens[at:end] = held.prompt[chunk.start : chunk.start + chunk.count]
            rows.positions[at:end] = np.arange(chunk.start, chunk.start + chunk.count)
            rows.slots[at:end] = chunk.slot
            at = end
            if chunk.last:
                index.append(end - 1)
        for row in plan.decodes:
            rows.tokens[at] = row.token
            rows.positions[at] = row.position
            rows.slots[at] = row.slot
            index.append(at)
            at += 1
        rows.count = at
        return index

    def _slot(self, slot: int) -> _Slot:
        held = self._slots[slot]
        assert held is not None, f"slot {slot} is not open"
        return held

    def _select(self, tables: SlotTables) -> Candidates:
        slots = self._sampled
        params = [self._slot(slot).sampling for slot in slots]
        found = self._selector.select(self._logits, slots, params, tables)
        if np.isnan(found.lse).any():
            raise NumericError(f"engine: the model's logits are {NOT_NUMBERS}")
        return found

    def full_rows(self, step: int, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        return self._selector.adjusted(self._logits, rows)

    def read_logits(self, logits: Logits, count: int) -> npt.NDArray[np.float32]:
        """float32 [count, V]: the first rows of any logits of the model, whole on every rank."""
        own = self.backend.read_logits(logits, count)
        if self.collective is None:
            return own
        return gather_slices(self.collective, own, self._slices)


def _load(
    checkpoint: Checkpoint | DummyModel, backend: Backend, shard: Shard, *, drafts: bool
) -> tuple[Model, Account]:
    family = family_of(checkpoint.config)
    config = family.parse(checkpoint.config)
    if isinstance(checkpoint, DummyModel):
        return family.build(config, DummyWeights(backend, shard), drafts=drafts), Account()
    trial = Binding(checkpoint)
    family.build(config, CheckedWeights(trial, shard), drafts=drafts)
    trial.finish()
    loaded = LoadedWeights(Binding(checkpoint), backend, shard)
    model: Model = family.build(config, loaded, drafts=drafts)
    checkpoint.release()
    return model, loaded.account
