"""Hyper-connections: a residual of several streams that every sublayer mixes anew.

Two-pass: each sublayer collapses the streams by mixes of its own, reads the collapsed row, and its
output is spread over the streams as they are mixed among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.checkpoint.formats import BF16_BARE, Format
from dgpp.models.layers.extended import extended
from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Rows
from kernels_numba.extended import HyperSite


@dataclass(frozen=True, slots=True)
class HyperShape:
    """`streams` of `width` values; `iterations` make their mixing doubly stochastic."""

    streams: int
    width: int
    norm_eps: float
    eps: float
    iterations: int

    @property
    def mixes(self) -> int:
        return self.streams * (2 + self.streams)

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        return (("hyper raw", self.mixes), ("hyper mixes", self.mixes))


class HyperConnection:
    """The site of one sublayer; tensors `name`_fn, `name`_base and `name`_scale."""

    def __init__(
        self, source: WeightSource, name: str, shape: HyperShape, stored: Format = BF16_BARE
    ) -> None:
        width = shape.streams * shape.width
        fn = source.matrix("hyper-connections", [Linear(f"{name}_fn", shape.mixes, width, stored)])
        base, scale = (
            source.vector("hyper-connections", f"{name}_{part}", size, ("F32",))
            for part, size in (("base", shape.mixes), ("scale", 3))
        )
        self._site = HyperSite(
            fn,
            base,
            scale,
            shape.streams,
            shape.width,
            shape.norm_eps,
            shape.eps,
            shape.iterations,
        )

    def before(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """work.x = the streams collapsed for the sublayer."""
        more, raw, mixes = extended(ops), work.extra["hyper raw"], work.extra["hyper mixes"]
        more.linear(rows, work.streams, self._site.fn, raw)
        more.hyper_mix(rows, work.streams, self._site, raw, mixes)
        more.hyper_collapse(rows, work.streams, self._site, mixes, work.x)

    def after(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """Spread the sublayer's output over the streams."""
        mixes = work.extra["hyper mixes"]
        extended(ops).hyper_expand(rows, work.output, self._site, mixes, work.streams)


class MeanStreams:
    """Every stream begins as the embedded row; what comes out is their mean."""

    def __init__(self, shape: HyperShape) -> None:
        self._shape = shape

    def enter(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        for stream in range(self._shape.streams):
            extended(ops).copy(rows, work.x, work.streams, at=stream * self._shape.width)

    def leave(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        extended(ops).mean_streams(rows, work.streams, self._shape.streams, work.x)
