"""Compressed entries that several layers read: kept by one layer, with keys made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgpp.models.layers.compressor import Compressor, CompressorShape
from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import PagedRows, Ring
from kernels_numba.backend import Norm, Rows, Tensor
from kernels_numba.extended import ExtendedBackend, Rotation, Rounding


@dataclass(frozen=True, slots=True)
class KeyShape:
    """Index keys of `width` values, one per entry; the rest as in `CompressorShape`."""

    width: int
    rotated: int
    eps: float
    rounding: Rounding | None

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        return (("entry key raw", self.width), ("entry key", self.width))


class KeptEntries:
    """What a layer of `kv_source_layer_ids` keeps for itself and those after it. Tensors under
    `name`: those of its compressor, and of its indexer wk and k_norm."""

    def __init__(
        self, source: WeightSource, name: str, shape: CompressorShape, keys: KeyShape
    ) -> None:
        self.every, self._keys = shape.every, keys
        self._compressor = Compressor(source, f"{name}.compressor", shape)
        wk = Linear(f"{name}.indexer.wk", keys.width, shape.width)
        self._project = source.matrix("indexer", [wk])
        norm = source.vector("norms", f"{name}.indexer.k_norm.weight", keys.width)
        self._norm = Norm(norm, keys.eps)

    def paged(self, name: str) -> list[PagedRows]:
        keys = PagedRows(f"{name} index", self._keys.width, self.every)
        return [self._compressor.shape.entries(name), keys]

    def rings(self, name: str) -> list[Ring]:
        return [self._compressor.shape.ring(name)] if self.every > 1 else []

    def prepare(
        self,
        ops: ExtendedBackend,
        angles: Tensor,
        paged: Sequence[object],
        rings: Sequence[object],
    ) -> None:
        """Give them their rotary table and their state, as declared, once."""
        self._ops = ops
        self.entries, self.keys = paged
        self._compressor.prepare(ops, angles, rings[0] if rings else None)
        keys = self._keys
        at, half = keys.width - keys.rotated, keys.rotated // 2
        self._turn = Rotation(angles, 1, keys.width, at, half, pairs=True, every=self.every)

    def forward(self, rows: Rows, work: Workspace, normed: Tensor) -> None:
        """Keep the entries that the rows complete, and their keys."""
        ops, raw, key = self._ops, work.extra["entry key raw"], work.extra["entry key"]
        entry = self._compressor.forward(rows, work, normed)
        ops.linear(rows, entry, self._project, raw)
        ops.norm(rows, raw, self._norm, key)
        ops.rotate(rows, key, self._turn)
        if self._keys.rounding is not None:
            ops.round_rows(rows, key, self._keys.rounding)
        ops.store_rows(rows, key, self.keys, every=self.every)
        self._compressor.keep(rows, entry, self.entries)
