"""The engine that runs a model: plans in, candidates out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.draft_vocab import read_draft_vocab
from dgpp.engine.agreement import require_one_model
from dgpp.engine.backends import gpu_named, make_backend
from dgpp.engine.base import StepTrace
from dgpp.engine.loading import DummyModel, Loading
from dgpp.engine.moves import StateMoves
from dgpp.engine.row_selection import RowSelector, row_draw
from dgpp.engine.scoring import PromptScorer, scored_rows
from dgpp.engine.sharded_selection import ShardedSelector, gather_slices
from dgpp.errors import CheckpointError, NumericError
from dgpp.models.forms import AS_STORED, ModelForms
from dgpp.models.observer import Observer
from dgpp.models.plan import row_capacity
from dgpp.models.shard import ALONE, Shard
from dgpp.models.tables import RESIDENT, Tables
from dgpp.net.collective import Collective
from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.params import SamplingParams
from dgpp.sample.scored import ScoredPrompt
from dgpp.sample.tables import allocate_tables
from dgpp.sched.limits import EngineLimits
from dgpp.sched.plan import Open, Plan
from dgpp.sched.request import Submit
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Logits
from kernels_numba.picks import Draw

I32Array = npt.NDArray[np.int32]

NOT_NUMBERS = "no numbers (NaN): the weights or config.json are damaged"


@dataclass(slots=True)
class _Slot:
    prompt: I32Array
    request: Submit

    def draw(self, slot: int, position: int) -> Draw:
        """How the row at `position` draws the token after it."""
        produced = position + 1 - len(self.prompt)
        return row_draw(slot, self.request.sampling, self.request.seed, produced)


@dataclass(slots=True)
class _Lane:
    """What a step leaves behind, kept while the next ones run.

    `is_decode`: it was nothing else; `replayed` rows of it were a recorded step's. `scorer` uses
    the same room before the step's own rows do.
    """

    logits: Logits
    selector: RowSelector | ShardedSelector
    scorer: PromptScorer
    step: int = -1
    is_decode: bool = False
    replayed: int = 0
    scored: tuple[ScoredPrompt, ...] = ()


class ModelEngine:
    """Implements `dgpp.engine.base.Engine` with a checkpoint's weights on the backend `backend`.

    Loading binds every tensor before it reads one: CheckpointError names what does not fit,
    ConfigError what is wrong with the GPU.
    `threads` are the CPU backend's, `device` is the CUDA backend's.
    `drafts` loads the draft layers too (their numbers can be checked; they do not serve yet).
    `forms` are those that the model is held in, `tables` says where its tables are.
    `images` is a directory where weights as they are held are kept, and taken from, if given.
    `observer`, when set, sees each layer of every forward.

    With `collective`, which has joined, the engine is one rank of a world: every method but
    `notes` is called on all ranks in the same order. CheckpointError names what ranks hold of
    different models.
    """

    # Of some kernels it shows only here that they cannot be compiled, or kept.
    @gpu_named()
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
        forms: ModelForms = AS_STORED,
        tables: Tables = RESIDENT,
        images: Path | None = None,
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
        load = Loading(checkpoint, self.backend, shard, forms, tables, drafts)
        self.model, account = load.run(images)
        self._notes = load.notes
        if drafts and forms.draft_vocab:
            path = Path(forms.draft_vocab).expanduser()
            self.model.limit_drafts(read_draft_vocab(path, limits.vocab_size).tolist())
        if collective is not None:
            require_one_model(account, collective)
        self.model.state.require_kv_dtype(forms.kv_dtype, "the model")
        self.pools = StatePools(
            self.model.state,
            self.backend,
            slots=limits.slots,
            blocks=limits.blocks,
            block_tokens=limits.block_tokens,
            snapshots=0 if limits.paged_only else limits.snapshots,
            kv_dtype=forms.kv_dtype,
        )
        self.model.prepare(self.backend, self.pools, limits.position_ceiling, collective)
        width = -(-limits.position_ceiling // limits.block_tokens)
        self.rows = self.backend.rows(limits.slots, width)
        self._moves = StateMoves(self.pools, self.rows.tables, limits.block_tokens)
        self._slots: list[_Slot | None] = [None] * limits.slots
        self._slices = [
            Shard(rank, shard.world).vocabulary(limits.vocab_size) for rank in range(shard.world)
        ]
        self._lanes = [self._lane() for _ in range(limits.depth + 1)]
        self._launched = 0
        self._ended_ns = 0
        self.trace = StepTrace()
        self.scored: tuple[ScoredPrompt, ...] = ()

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
            self.model.logits(range(min(count, self.limits.slots)), self._lanes[0].logits)
        for lane in self._lanes:
            lane.selector.warm_up(lane.logits)
        tables = allocate_tables(self.limits.slots, self.limits.vocab_size)
        greedy = SamplingParams(temperature=0.0)
        found = self._lanes[0].selector.select(self._lanes[0].logits, [0], [greedy], tables)
        if np.isnan(found.lse[0]):
            raise CheckpointError(f"the model's logits are {NOT_NUMBERS} for token 0 alone")

    def record(self) -> None:
        """Record decode steps, to be replayed from now on where the backend can. After `warm_up`:
        all scratch is there."""
        counts = range(1, self.limits.slots + 1)
        steps = [partial(self._decode, lane) for lane in self._lanes]
        with self.backend.guard("recording decode steps"):
            self.backend.record(self.rows, counts, self.limits.position_ceiling, steps)

    def _decode(self, lane: _Lane) -> None:
        """The step of rows that are decoded, each of which is sampled."""
        self.model.forward(self.rows)
        self.model.logits(range(self.rows.count), lane.logits)

    def notes(self) -> list[str]:
        """Lines for the start-up log, once warm."""
        return [*self._notes, *self.backend.notes()]

    def launch(self, plan: Plan, tables: SlotTables) -> None:
        number = self._launched % len(self._lanes)
        lane = self._lanes[number]
        self._launched += 1
        is_decode = bool(plan.decodes) and not plan.prefills
        with self.backend.guard(f"launching step {plan.step}"):
            index = self._place(plan)
            is_plain = is_decode and self.observer is None
            replayed = is_plain and self.backend.replay(self.rows, number)
            if self.rows.count and not replayed:
                self.model.forward(self.rows, self.observer)
            lane.scored = tuple(
                lane.scorer.score(rows, tables) for rows in scored_rows(plan, self._slot)
            )
            if index and not replayed:
                self.model.logits(index, lane.logits)
            slots = plan.sampled_slots()
            held = [self._slot(slot) for slot in slots]
            draws: list[Draw] = []
            if self.limits.depth:
                positions = self.rows.positions[index].tolist()
                draws = [h.draw(*at) for h, *at in zip(held, slots, positions, strict=True)]
            params = [h.request.sampling for h in held]
            lane.selector.launch(lane.logits, slots, params, tables, draws)
        lane.step = plan.step
        lane.is_decode = is_decode
        lane.replayed = self.rows.count if replayed else 0

    def collect(self, step: int) -> Candidates:
        lane = self._lane_of(step)
        with self.backend.guard(f"running step {step}"):
            found = lane.selector.collect()
        _require_numbers(found)
        self.scored = lane.scored
        self._measure(lane)
        return found

    def full_rows(self, step: int, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        lane = self._lane_of(step)
        with self.backend.guard(f"reading rows of step {step}"):
            return lane.selector.adjusted(lane.logits, rows)

    def forward(self, plan: Plan) -> list[int]:
        """Run the model over the plan's rows and leave it at that; the rows to be sampled."""
        index = self._place(plan)
        if self.rows.count:
            self.model.forward(self.rows, self.observer)
        return index

    def _place(self, plan: Plan) -> list[int]:
        """Begin a step of the plan's rows; those to be sampled."""
        self._moves.apply(plan)
        for slot in plan.closes:
            self._slots[slot] = None
        for opened in plan.opens:
            self._open(opened)
        index = self._fill(plan)
        if self.rows.count:
            self.backend.begin(self.rows)
        return index

    def _lane(self) -> _Lane:
        limits, own = self.limits, len(self.model.vocabulary)
        sampled = limits.slots * (1 + limits.max_drafts)
        picker = self.backend.picker(sampled, own, min(limits.candidates, len(self._slices[0])))
        local = RowSelector(picker, self.model.vocabulary)
        selector: RowSelector | ShardedSelector = local
        if self.collective is not None:
            merged = self.collective.merge(picker, self._slices)
            selector = ShardedSelector(local, self.collective, self._slices, merged=merged)
        logits = self.backend.logits(sampled, own)
        scorer = PromptScorer(self.model.logits, logits, selector, sampled, _require_numbers)
        return _Lane(logits, selector, scorer)

    def _lane_of(self, step: int) -> _Lane:
        lane = next((lane for lane in self._lanes if lane.step == step), None)
        assert lane is not None, f"step {step} is not kept"
        return lane

    def _measure(self, lane: _Lane) -> None:
        """Note how long the device stood idle before the step, if it and the one before it were
        plain decode steps."""
        began, ended = lane.selector.began_ns, lane.selector.ended_ns
        gap = began - self._ended_ns if lane.is_decode and self._ended_ns else -1
        self.trace = StepTrace(lane.replayed, gap)
        self._ended_ns = ended if lane.is_decode else 0

    def _open(self, opened: Open) -> None:
        prompt = opened.request.prompt_ids.astype(np.int32)
        self._slots[opened.slot] = _Slot(prompt, opened.request)
        # A prompt that is scored has logits of its own in every row.
        bounded = self.limits.reread > 1 and opened.request.scored < 0
        floor = max(0, prompt.size - self.limits.reread) if bounded else 0
        self.rows.floors[opened.slot] = floor

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

    def read_logits(self, logits: Logits, count: int) -> npt.NDArray[np.float32]:
        """float32 [count, V]: the first rows of any logits of the model, whole on every rank."""
        own = self.backend.read_logits(logits, count)
        if self.collective is None:
            return own
        return gather_slices(self.collective, own, self._slices)


def _require_numbers(found: Candidates) -> None:
    if np.isnan(found.lse).any():
        raise NumericError(f"engine: the model's logits are {NOT_NUMBERS}")
