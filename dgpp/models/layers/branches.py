"""A residual of several branches, each normed by itself; gates of low rank mix what a sublayer
reads of them, and say how much of its output each branch takes."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.models.layers.extended import extended
from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Matrix, Norm, Rows


@dataclass(frozen=True, slots=True)
class BranchShape:
    """`branches` of `width` values, gates of rank `rank`."""

    branches: int
    width: int
    rank: int
    eps: float

    @property
    def whole(self) -> int:
        """Values of all branches."""
        return self.branches * self.width

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        return (
            ("branches normed", self.whole),
            ("branches raw", self.rank + self.branches),
            ("branches low", self.rank),
            ("branches inject", self.branches),
            ("branches gates", self.whole),
        )


class BranchMixer:
    """work.x = the mean over branches of σ(up · silu(down · N / n)) · N, N being the normed
    branches. The norm's weights are stored less one."""

    def __init__(self, source: WeightSource, name: str, shape: BranchShape) -> None:
        self.shape = shape
        weight = source.vector("norms", f"{name}.hc_norm.weight", shape.whole, plus=1.0)
        self._norm = Norm(weight, shape.eps)
        self._down = self._lower(source, name)
        up = Linear(f"{name}.input_mix_weight_up", shape.whole, shape.rank)
        self._up = source.matrix("gated residual", [up])

    def _lower(self, source: WeightSource, name: str) -> Matrix:
        """What reads the normed branches."""
        down = Linear(f"{name}.input_mix_weight_down", self.shape.rank, self.shape.whole)
        return source.matrix("gated residual", [down])

    def enter(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """Every branch begins as the embedded row."""
        for branch in range(self.shape.branches):
            extended(ops).copy(rows, work.x, work.streams, at=branch * self.shape.width)

    def leave(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        self._mix(ops, rows, work, injects=False)

    def _mix(self, ops: Backend, rows: Rows, work: Workspace, *, injects: bool) -> None:
        more, branches, held = extended(ops), self.shape.branches, work.extra
        normed, raw, low, gates = (
            held[f"branches {part}"] for part in ("normed", "raw", "low", "gates")
        )
        more.group_norm(rows, work.streams, self._norm, branches, normed)
        more.linear(rows, normed, self._down, raw)
        inject = held["branches inject"] if injects else None
        more.branch_gates(rows, raw, low, inject, branches)
        more.linear(rows, low, self._up, gates)
        more.branch_collapse(rows, normed, gates, branches, work.x)


class BranchSite(BranchMixer):
    """Around a sublayer: branches_i += 2 σ(inject · N / n)_i · what it makes of the mix."""

    def _lower(self, source: WeightSource, name: str) -> Matrix:
        shape = self.shape
        down = Linear(f"{name}.input_mix_weight_down", shape.rank, shape.whole)
        inject = Linear(f"{name}.block_inject_weight", shape.branches, shape.whole)
        return source.matrix("gated residual", [down, inject])

    def before(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        self._mix(ops, rows, work, injects=True)

    def after(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        inject, branches = work.extra["branches inject"], self.shape.branches
        extended(ops).branch_expand(rows, work.output, inject, branches, work.streams)
