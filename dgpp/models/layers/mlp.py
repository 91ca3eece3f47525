"""Gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.shard import Split
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Norm, Rows, SharedExperts, Tensor


@dataclass(frozen=True, slots=True)
class MlpNames:
    """What the projections of an MLP are called."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


PROJECTIONS = MlpNames()


class GatedMlp:
    """down(silu(gate(x)) · up(x)); in a world a rank has its share of the inner values. A `limit`
    above 0 bounds gate and up."""

    def __init__(
        self,
        source: WeightSource,
        item: str,
        name: str,
        hidden: int,
        inner: int,
        stored: Format,
        limit: float = 0.0,
        names: MlpNames = PROJECTIONS,
    ) -> None:
        self._limit = limit
        sides = [
            Linear(f"{name}.{side}", inner, hidden, stored, split=Split.ROWS)
            for side in (names.gate, names.up)
        ]
        down = Linear(f"{name}.{names.down}", hidden, inner, stored, split=Split.COLUMNS)
        self._gate_up = source.matrix(item, sides)
        self._down = source.matrix(item, [down])

    @property
    def matrices(self) -> SharedExperts:
        """As experts that every row of a mixture passes."""
        return SharedExperts(self._gate_up, self._down, self._limit)

    def forward(
        self,
        ops: Backend,
        rows: Rows,
        work: Workspace,
        source: Tensor,
        out: Tensor,
        *,
        norm: Norm | None,
        add: bool,
    ) -> None:
        """out = (out +) mlp(norm(source))."""
        ops.gated(rows, source, self._gate_up, work.act, norm=norm, limit=self._limit)
        ops.linear(rows, work.act, self._down, out, add=add)


class DenseMlp:
    """x += mlp(norm(x)); `plus` is added to the norm's weights."""

    def __init__(
        self,
        source: WeightSource,
        prefix: str,
        hidden: int,
        inner: int,
        eps: float,
        stored: Format,
        *,
        norm: str = "post_attention_layernorm",
        plus: float = 0.0,
        limit: float = 0.0,
    ) -> None:
        weight = source.vector("norms", f"{prefix}.{norm}.weight", hidden, plus=plus)
        self._norm = Norm(weight, eps)
        self._mlp = GatedMlp(source, "mlp", f"{prefix}.mlp", hidden, inner, stored, limit)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        fold = work.fold
        self._mlp.forward(ops, rows, work, work.x, fold.target, norm=self._norm, add=fold.add)
        fold.finish(rows)
