"""Hyper-connections: a residual of several streams that every sublayer mixes anew.

Each sublayer reads the streams collapsed into one row, and its output is spread over the streams as
they are mixed among themselves. Two-pass: a sublayer collapses by mixes of its own. Single-pass: by
those of the sublayer before it, the first takes the first stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dgpp.checkpoint.formats import BF16_BARE, Format
from dgpp.models.layers.extended import extended
from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Rows
from kernels_numba.streams import HyperSite


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
        collapse(ops, rows, work, self._site)

    def after(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """Spread the sublayer's output over the streams."""
        mixes = work.extra["hyper mixes"]
        extended(ops).hyper_expand(rows, work.output, self._site, mixes, work.streams)


class SinglePassConnection(HyperConnection):
    """A site whose own mixes, `own` of the rows' extra, collapse for the next site; it collapses by
    `by`, None for the first site of all."""

    def __init__(
        self,
        source: WeightSource,
        name: str,
        shape: HyperShape,
        stored: Format,
        *,
        own: str,
        by: str | None,
    ) -> None:
        super().__init__(source, name, shape, stored)
        self._own, self._by = own, by

    def before(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        more, site, raw = extended(ops), self._site, work.extra["hyper raw"]
        more.linear(rows, work.streams, site.fn, raw)
        more.hyper_mix(rows, work.streams, site, raw, work.extra[self._own])
        if self._by is not None:
            more.hyper_collapse(rows, work.streams, site, work.extra[self._by], work.x)
            return
        first = (site.streams * site.width, 0)
        more.copy_heads(rows, work.streams, first, 1, site.width, work.x, (site.width, 0))

    def after(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        mixes = work.extra[self._own]
        extended(ops).hyper_expand(rows, work.output, self._site, mixes, work.streams)

    def collapse(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """work.x = the streams collapsed by this site's mixes, for what comes after the last."""
        extended(ops).hyper_collapse(rows, work.streams, self._site, work.extra[self._own], work.x)


class Streams(Protocol):
    """How rows come into a residual of several streams and out of it."""

    def enter(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """work.streams = the embedded rows, which stand in work.x."""

    def leave(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """work.x = what the final norm takes."""


class CopiedStreams:
    """Every stream begins as the embedded row."""

    def __init__(self, shape: HyperShape) -> None:
        self._shape = shape

    def enter(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        for stream in range(self._shape.streams):
            extended(ops).copy(rows, work.x, work.streams, at=stream * self._shape.width)


class MeanStreams(CopiedStreams):
    """What comes out is the streams' mean."""

    def leave(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        extended(ops).mean_streams(rows, work.streams, self._shape.streams, work.x)


class GatedStreams(CopiedStreams):
    """What comes out is the streams' sum, weighted by mixes of their own; tensors as of a
    connection that only collapses."""

    def __init__(
        self, source: WeightSource, name: str, shape: HyperShape, stored: Format = BF16_BARE
    ) -> None:
        super().__init__(shape)
        n, width = shape.streams, shape.streams * shape.width
        fn = source.matrix("hyper-connections", [Linear(f"{name}_fn", n, width, stored)])
        base, scale = (
            source.vector("hyper-connections", f"{name}_{part}", size, ("F32",))
            for part, size in (("base", n), ("scale", 1))
        )
        self._site = HyperSite(
            fn, base, scale, n, shape.width, shape.norm_eps, shape.eps, 0, spreads=False
        )

    def leave(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        collapse(ops, rows, work, self._site)


def collapse(ops: Backend, rows: Rows, work: Workspace, site: HyperSite) -> None:
    """work.x = the streams weighted by the site's first mixes; "hyper mixes" = all of them."""
    more, raw, mixes = extended(ops), work.extra["hyper raw"], work.extra["hyper mixes"]
    more.linear(rows, work.streams, site.fn, raw)
    more.hyper_mix(rows, work.streams, site, raw, mixes)
    more.hyper_collapse(rows, work.streams, site, mixes, work.x)
