"""Gives an engine the work of a server: prompts in chunks, then decode steps of several slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count

import numpy as np

from dgpp.engine.model_engine import ModelEngine
from dgpp.models.observer import Unconcerned
from dgpp.sample.params import SamplingParams
from dgpp.sample.tables import allocate_tables
from dgpp.sched.plan import FED, DecodeRow, Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids
from kernels_numba.backend import Routes, Rows

GREEDY = SamplingParams(temperature=0.0)


class Driver:
    """Slots 0 … batch − 1, each with a random prompt of its own and an equal share of the cache."""

    def __init__(self, engine: ModelEngine) -> None:
        limits = engine.limits
        self.engine = engine
        self._tables = allocate_tables(limits.slots, limits.vocab_size, 1 + limits.max_drafts)
        self._steps = count(1)
        self._each = limits.blocks // limits.slots
        self._read = [0] * limits.slots
        self._open = [False] * limits.slots

    def open(self, slots: Sequence[int], tokens: int) -> None:
        """Begin prompts of `tokens` random ids, in slots that may be in use."""
        limits = self.engine.limits
        opens = []
        for slot in slots:
            ids = np.random.default_rng(slot).integers(0, limits.vocab_size, tokens)
            request = Submit(f"bench-{slot}", pack_ids(ids), 1, GREEDY)
            first = slot * self._each
            opens.append(Open(slot, request, tuple(range(first, first + self._each))))
        closes = tuple(slot for slot in slots if self._open[slot])
        plan = Plan(next(self._steps), closes=closes, opens=tuple(opens))
        self.engine.launch(plan, self._tables)
        self.engine.collect(plan.step)
        for slot in slots:
            self._open[slot], self._read[slot] = True, 0

    def read(self, slot: int, tokens: int) -> int:
        """Read the slot's prompt up to `tokens`, in the largest chunks; the id picked after it."""
        limit = self.engine.limits.chunk_limit
        picked: list[int] = []
        out: deque[int] = deque()
        for start in range(self._read[slot], tokens, limit):
            size = min(limit, tokens - start)
            chunk = PrefillChunk(slot, start, size, last=start + size == tokens)
            plan = Plan(next(self._steps), prefills=(chunk,))
            self.engine.launch(plan, self._tables)
            out.append(plan.step)
            if len(out) > self.engine.limits.depth:
                picked = self._picks(out.popleft())
        while out:
            picked = self._picks(out.popleft())
        self._read[slot] = tokens
        return picked[0] if picked else -1

    def decode(self, position: int, tokens: Sequence[int], steps: int) -> list[int]:
        """Greedy steps of the first len(tokens) slots from `position` on; the last picks. Steps go
        out ahead of the picks before them, as far as the engine takes them."""
        out: deque[int] = deque()
        depth = self.engine.limits.depth
        for step in range(steps):
            fed = [FED] * len(tokens) if step and depth else tokens
            rows = tuple(DecodeRow(slot, position + step, t) for slot, t in enumerate(fed))
            plan = Plan(next(self._steps), decodes=rows)
            self.engine.launch(plan, self._tables)
            out.append(plan.step)
            if len(out) > depth:
                tokens = self._picks(out.popleft())
        while out:
            tokens = self._picks(out.popleft())
        return list(tokens)

    def _picks(self, step: int) -> list[int]:
        ids: list[int] = self.engine.collect(step).ids[:, 0].tolist()
        return ids


class ExpertCount(Unconcerned):
    """An observer that counts the distinct experts which each MoE layer picks in a step."""

    def __init__(self, engine: ModelEngine) -> None:
        self._backend = engine.backend
        self._seen: list[int] = []

    def routed(self, layer: int, rows: Rows, routes: Routes) -> None:
        ids, _ = self._backend.read_routes(routes, rows.count)
        self._seen.append(len(np.unique(ids)))

    @property
    def mean(self) -> float:
        """Experts of a layer and step; 0 without MoE layers."""
        return float(np.mean(self._seen)) if self._seen else 0.0
