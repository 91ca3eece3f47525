"""The sampler's actor: it decides a step's tokens and tells the scheduler and the readers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from actors.channel import Arrays
from actors.context import Context
from actors.messages.engine_sampler import FullRow, Selected
from actors.messages.sampler_engine import WantRow
from actors.messages.sampler_tokenizer import Committed, Tokens
from actors.role import Role
from dgpp.sample.candidates import Candidates
from dgpp.sample.sampler import NeedRows, Sampled, Sampler
from dgpp.sched.plan import Plan

ENGINE = "sampler>engine"
SCHEDULER = "sampler>scheduler"
TOKENIZER = "sampler>tokenizer"


class SamplerActor(Role):
    """Plans come from the scheduler and candidates from the engine, in either order."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sampler = Sampler(self.boot.limits.slots)
        self._plan: Plan | None = None
        self._candidates: tuple[Candidates, Arrays] | None = None
        self._rows: dict[int, npt.NDArray[np.float32] | None] = {}

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        match message:
            case Plan():
                self._sampler.prepare(message)
                self._plan = message
                self._decide()
            case Selected():
                # Rows sent for later are resolved against these: they outlive this handler.
                arrays.retain()
                self._candidates = (Candidates(*arrays), arrays)
                self._decide()
            case FullRow():
                self._take_row(message.row, arrays[0])

    def _decide(self) -> None:
        if self._plan is not None and self._candidates is not None:
            self._proceed(self._sampler.step(self._plan, self._candidates[0]))

    def _take_row(self, row: int, values: npt.NDArray[np.float32]) -> None:
        self._rows[row] = values.copy()
        rows = list(self._rows.values())
        if all(r is not None for r in rows):
            self._rows.clear()
            self._proceed(self._sampler.resume(np.stack([r for r in rows if r is not None])))

    def _proceed(self, result: Sampled | NeedRows) -> None:
        if isinstance(result, NeedRows):
            self._rows = dict.fromkeys(result.rows)
            for row in result.rows:
                self.context.post(ENGINE, WantRow(result.step, row))
            return
        assert self._candidates is not None
        self._candidates[1].release()
        self._plan, self._candidates = None, None
        if result.steps:
            items = tuple(Tokens(*step) for step in result.steps)
            # Readers first: the client waits for them, the next step for the scheduler.
            self.context.post(TOKENIZER, Committed(items, self.context.clock_ns()))
        self.context.post(SCHEDULER, result.verdict)
