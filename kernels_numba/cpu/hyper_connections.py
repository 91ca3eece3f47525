"""The CPU backend's operations on residuals of several streams."""

from __future__ import annotations

from kernels_numba.backend import Rows
from kernels_numba.cpu import hyper as hyper_kernels
from kernels_numba.cpu.memory import Block
from kernels_numba.cpu.scratch import Scratch
from kernels_numba.cpu.stream_gate import gate_streams
from kernels_numba.streams import HyperSite, StreamGate
from kernels_numba.weights import VECTOR


class CpuHyper:
    """Part of what `kernels_numba.extended.ExtendedBackend` has beyond a Backend."""

    _scratch: Scratch

    def hyper_mix(
        self, rows: Rows, streams: Block, site: HyperSite, raw: Block, mixes: Block
    ) -> None:
        hyper_kernels.hyper_mix(
            streams.address, streams.stride, raw.address, raw.stride, rows.count, site.streams,
            site.width, site.base.address, site.scale.address, site.norm_eps, site.eps,
            site.iterations, int(site.spreads), mixes.address, mixes.stride,
        )  # fmt: skip

    def hyper_collapse(
        self, rows: Rows, streams: Block, site: HyperSite, weights: Block, out: Block
    ) -> None:
        hyper_kernels.hyper_collapse(
            streams.address, streams.stride, rows.count, site.streams, site.width,
            weights.address, weights.stride, out.address, out.stride,
        )  # fmt: skip

    def mean_streams(self, rows: Rows, streams: Block, count: int, out: Block) -> None:
        hyper_kernels.mean_streams(
            streams.address, streams.stride, rows.count, count, out.width, out.address, out.stride
        )

    def hyper_expand(
        self, rows: Rows, y: Block, site: HyperSite, mixes: Block, streams: Block
    ) -> None:
        hyper_kernels.hyper_expand(
            y.address, y.stride, rows.count, site.streams, site.width, mixes.address, mixes.stride,
            streams.address, streams.stride,
        )  # fmt: skip

    def gate_streams(
        self, rows: Rows, streams: Block, kv: Block, gate: StreamGate, out: Block
    ) -> None:
        scratch = self._scratch.floats(VECTOR + gate.width)
        gate_streams(
            streams.address, streams.stride, rows.count, gate.streams, gate.width, kv.address,
            kv.stride, gate.query.address, gate.key.address, gate.eps, out.address, out.stride,
            scratch.address, scratch.stride,
        )  # fmt: skip
