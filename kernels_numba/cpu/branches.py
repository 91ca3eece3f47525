"""The CPU backend's operations on residuals of several branches."""

from __future__ import annotations

from kernels_numba.backend import Norm, Rows
from kernels_numba.cpu import branch as kernels
from kernels_numba.cpu.memory import Block


class CpuBranches:
    """The branches' part of `kernels_numba.streams.StreamBackend`."""

    def group_norm(self, rows: Rows, x: Block, norm: Norm, groups: int, out: Block) -> None:
        width = out.width // groups
        own = norm.weight.width == out.width
        kernels.group_norm(
            x.address, x.stride, rows.count, groups, width, norm.weight.address,
            4 * width if own else 0, norm.eps, out.address, out.stride,
        )  # fmt: skip

    def branch_gates(
        self, rows: Rows, raw: Block, low: Block, inject: Block | None, branches: int
    ) -> None:
        kernels.branch_gates(
            raw.address, raw.stride, rows.count, low.width, branches, low.address, low.stride,
            0 if inject is None else inject.address, 0 if inject is None else inject.stride,
        )  # fmt: skip

    def branch_collapse(
        self, rows: Rows, normed: Block, gates: Block, branches: int, out: Block
    ) -> None:
        kernels.branch_collapse(
            normed.address, normed.stride, gates.address, gates.stride, rows.count, branches,
            out.width, out.address, out.stride,
        )  # fmt: skip

    def branch_expand(
        self, rows: Rows, y: Block, inject: Block, branches: int, streams: Block
    ) -> None:
        kernels.branch_expand(
            y.address, y.stride, rows.count, branches, y.width, inject.address, inject.stride,
            streams.address, streams.stride,
        )  # fmt: skip

    def add(self, rows: Rows, x: Block, out: Block) -> None:
        kernels.add_rows(x.address, x.stride, rows.count, x.width, out.address, out.stride)

    def gate_whole(self, rows: Rows, x: Block, gate: Block) -> None:
        kernels.gate_whole(x.address, x.stride, rows.count, x.width, gate.address, gate.stride)
