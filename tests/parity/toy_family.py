"""A family with every kind of state: a recurrence, a sliding window, and rows for all tokens.

Small enough to be read, and of an arithmetic that depends on the order of its sums: a row added
twice, left out or taken from another request shows in the bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dgpp.models.decoder import Decoder, Ends
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.registry import Family
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import FixedState, PagedRows, Ring, StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows

CONFIG = {"model_type": "toy", "vocab_size": 128, "hidden_size": 32, "window": 5}


@dataclass(frozen=True)
class ToyConfig:
    vocab_size: int
    hidden_size: int
    window: int
    max_position_embeddings: int = 4096
    num_hidden_layers: int = 3


def parse(config: dict[str, Any]) -> ToyConfig:
    return ToyConfig(config["vocab_size"], config["hidden_size"], config["window"])


class Recurrence:
    """s ← 0.9 s + x; x += tanh(s). And the token before, as a convolution would keep it."""

    def __init__(self, hidden: int) -> None:
        self._hidden = hidden

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        n = self._hidden
        for r in range(rows.count):
            state = self.state.array[rows.slots[r]]
            x = work.x.array[r, :n]
            state[0, :n] = np.float32(0.9) * state[0, :n] + x
            before = state[1, :n].copy()
            state[1, :n] = x
            x += np.tanh(state[0, :n]) - np.float32(0.3) * before


class Window:
    """x += Σ of the window's rows, oldest first, each times 1 / (1 + its age)."""

    def __init__(self, hidden: int, window: int) -> None:
        self._hidden, self._window = hidden, window

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        n, w = self._hidden, self._window
        for r in range(rows.count):
            ring = self.ring.array[rows.slots[r]]
            position = int(rows.positions[r])
            x = work.x.array[r, :n]
            ring[position % w, :n] = x
            total = np.zeros(n, np.float32)
            for p in range(max(0, position - w + 1), position + 1):
                total += ring[p % w, :n] / np.float32(1 + position - p)
            x += np.tanh(total)


class All:
    """x += Σ over all positions, oldest first, of rows that every second token leaves."""

    def __init__(self, hidden: int) -> None:
        self._hidden = hidden

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        n = self._hidden
        held = self.rows.array
        each = held.shape[1]
        for r in range(rows.count):
            table, position = rows.tables[rows.slots[r]], int(rows.positions[r])
            x = work.x.array[r, :n]
            place = position // 2
            if position % 2 == 0:
                held[table[place // each], place % each, :n] = x
            total = np.zeros(n, np.float32)
            for p in range(place + 1):
                total += held[table[p // each], p % each, :n] * np.float32(0.1)
            x += np.tanh(total)


class ToyModel(Decoder):
    def __init__(self, config: ToyConfig, source: WeightSource, *, drafts: bool) -> None:
        super().__init__(source, Ends(config.vocab_size, config.hidden_size, 1e-5))
        n = config.hidden_size
        self.layers = [Recurrence(n), Window(n, config.window), All(n)]
        self.drafts = []
        self.rotary = 0
        self.state = StateDeclaration(
            planes=(),
            paged=(PagedRows("all", n, every=2),),
            rings=(Ring("window", config.window, n),),
            fixed=(FixedState("recurrence", 2, n),),
        )
        self.workspace = WorkspaceShape(
            hidden=n, qkv=n, queries=n, attended=n, intermediate=n, experts_per_token=0
        )

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        recurrence, window, all_rows = self.layers
        recurrence.state = pools.fixed[0]
        window.ring = pools.rings[0]
        all_rows.rows = pools.paged[0]


FAMILY = Family("toy", parse, ToyModel)
