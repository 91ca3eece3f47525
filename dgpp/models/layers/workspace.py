"""The activations of one step, allocated once and shared by all layers."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from dgpp.models.layers.extended import extended
from dgpp.models.layers.fold import Fold
from dgpp.net.collective import Collective
from kernels_numba.backend import Backend, Routes, Tensor
from kernels_numba.extended import Selection


@dataclass(frozen=True, slots=True)
class WorkspaceShape:
    """Widths in values on one rank. 0 experts per token where the model has no MoE layer, 0
    `partial` where nothing is summed over ranks, 0 `qkv` and `queries` without grouped-query
    attention, 0 `kv` where all keys are paged, 0 `selected` where no layer attends to a selection.
    `extra` are the float32 rows that a family's layers need besides, by name. With `streams` above
    0 the residual is that many streams, and x is what a sublayer meets of them."""

    hidden: int
    attended: int
    intermediate: int
    experts_per_token: int
    qkv: int = 0
    queries: int = 0
    partial: int = 0
    kv: int = 0
    selected: int = 0
    streams: int = 0
    extra: tuple[tuple[str, int], ...] = ()

    def row_bytes(self, *, narrow: bool = False) -> int:
        """Bytes per row, kernels' own scratch included; `narrow` where activations are bf16 and
        only sums are float32."""
        sums = 2 * self.hidden + self.qkv + self.partial + sum(width for _, width in self.extra)
        if self.streams:
            sums += (self.streams + 1) * self.hidden + self.partial
        rest = self.hidden + self.queries + self.attended + self.intermediate + self.kv
        rest += self.selected
        if not narrow:
            scratch = self.hidden + max(2 * self.intermediate, self.qkv)
            pairs = self.experts_per_token * (2 * self.hidden + 3 * self.intermediate)
            return 4 * (sums + rest + scratch + pairs)
        # A projection's input twice, normed and as its kernel wants it; for every expert of a row
        # the input, what is between, and the result in float32.
        widest = max(self.hidden, self.attended, self.intermediate)
        pair = 2 * (max(self.hidden, self.intermediate) + self.intermediate) + 4 * self.hidden
        return 4 * sums + 2 * (rest + 2 * widest) + self.experts_per_token * pair


class Workspace:
    """x: the residual; the others are free between a layer's operations. `fold` takes what a
    sublayer adds to x. `extra` are rows by the names that the shape gives.

    Of several streams the residual is `streams`; a sublayer then reads x, and its output goes to
    `output`. `collective` is what the layers of a world sum by.
    """

    def __init__(
        self, backend: Backend, shape: WorkspaceShape, collective: Collective | None
    ) -> None:
        self.collective = collective
        self.x: Tensor = backend.tensor(shape.hidden, wide=True)
        self._plain = Fold(backend, self.x, shape.hidden, collective)
        self.fold, self.output = self._plain, self.x
        if shape.streams:
            self.streams: Tensor = backend.tensor(shape.streams * shape.hidden, wide=True)
            self.output = backend.tensor(shape.hidden, wide=True)
            self.fold = Fold(backend, self.output, shape.hidden, collective, adds=False)
        self.normed: Tensor = backend.tensor(shape.hidden)
        self.shared: Tensor = backend.tensor(shape.hidden, wide=True)
        self.qkv: Tensor = backend.tensor(shape.qkv, wide=True) if shape.qkv else None
        self.queries: Tensor = backend.tensor(shape.queries) if shape.queries else None
        self.attended: Tensor = backend.tensor(shape.attended)
        self.kv: Tensor = backend.tensor(shape.kv) if shape.kv else None
        self._selection = extended(backend).selection(shape.selected) if shape.selected else None
        self.extra: dict[str, Tensor] = {
            name: backend.tensor(width, wide=True) for name, width in shape.extra
        }
        self.act: Tensor = backend.tensor(shape.intermediate)
        self.routes: Routes = backend.routes(max(1, shape.experts_per_token))

    def of_one_stream(self) -> Workspace:
        """The same rows for layers that add to x, such as those of draft levels."""
        plain = copy.copy(self)
        plain.fold, plain.output = self._plain, self.x
        return plain

    def routed(self, backend: Backend, top: int) -> Workspace:
        """The same rows for layers that take `top` experts a row."""
        other = copy.copy(self)
        other.routes = backend.routes(top)
        return other

    @property
    def selection(self) -> Selection:
        """What the rows attend to in sparse layers, as the last indexer chose."""
        assert self._selection is not None, "the workspace's shape has no selection"
        return self._selection
