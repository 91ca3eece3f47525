"""Operations on a residual of several streams, and on parts of rows that streams are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kernels_numba.backend import Matrix, Norm, Rows, Tensor


@dataclass(frozen=True, slots=True)
class HyperSite:
    """How `streams` residual streams of `width` values meet one sublayer: mixes of fn · streams.

    fn [2n + n², n · width]; base [2n + n²]; scale [3]. `norm_eps` is of the streams' RMS, `eps` of
    the mixes, whose n × n part is made doubly stochastic in `iterations`. A site that does not
    spread has the first n mixes only, and one scale.
    """

    fn: Matrix
    base: Tensor
    scale: Tensor
    streams: int
    width: int
    norm_eps: float
    eps: float
    iterations: int
    spreads: bool = True

    @property
    def mixes(self) -> int:
        """Values of a row of mixes [pre n | post n | comb n × n]."""
        return self.streams * (2 + self.streams) if self.spreads else self.streams


@dataclass(frozen=True, slots=True)
class StreamGate:
    """How a row [keys n × width | value] joins `streams` of `width` values.

    query, key float32 [n, width]: weights of the norms, by `eps`, of a stream and of its key.
    """

    query: Tensor
    key: Tensor
    streams: int
    width: int
    eps: float


class StreamBackend(Protocol):
    """Operations of families whose residual is several streams, mixed by hyper-connections or, as
    branches, by gates of low rank."""

    def hyper_mix(
        self, rows: Rows, streams: Tensor, site: HyperSite, raw: Tensor, mixes: Tensor
    ) -> None:
        """mixes[r] = [pre | post | comb] of row r's streams, or [pre]; raw[r] = fn · the same."""

    def hyper_collapse(
        self, rows: Rows, streams: Tensor, site: HyperSite, weights: Tensor, out: Tensor
    ) -> None:
        """out[r] = Σ_i weights[r, i] · streams[r, i]."""

    def mean_streams(self, rows: Rows, streams: Tensor, count: int, out: Tensor) -> None:
        """out[r] = the mean of row r's `count` streams."""

    def hyper_expand(
        self, rows: Rows, y: Tensor, site: HyperSite, mixes: Tensor, streams: Tensor
    ) -> None:
        """streams[r, j] = post_j · y[r] + Σ_i comb[i, j] · streams[r, i]."""

    def gate_streams(
        self, rows: Rows, streams: Tensor, kv: Tensor, gate: StreamGate, out: Tensor
    ) -> None:
        """out[r, i] = σ(±√max(|d|, 1e-6)) · value of kv[r], with the sign of
        d = ⟨norm(streams[r, i]), norm(key_i of kv[r])⟩ / √width; added to the streams where they
        are `out`."""

    def group_norm(self, rows: Rows, x: Tensor, norm: Norm, groups: int, out: Tensor) -> None:
        """out[r, g] = norm(x[r, g]) of the first `groups` parts of x; the norm's weights are one
        part's, or every part has its own. `out` is not x."""

    def branch_gates(
        self, rows: Rows, raw: Tensor, low: Tensor, inject: Tensor | None, branches: int
    ) -> None:
        """raw[r] = [a | b]: low = silu(a / branches), as wide as it is; inject = 2 σ(b / branches),
        one for each branch, where it is asked for."""

    def branch_collapse(
        self, rows: Rows, normed: Tensor, gates: Tensor, branches: int, out: Tensor
    ) -> None:
        """out[r] = the mean over branches of σ(gates[r, i]) · normed[r, i]."""

    def branch_expand(
        self, rows: Rows, y: Tensor, inject: Tensor, branches: int, streams: Tensor
    ) -> None:
        """streams[r, i] += inject[r, i] · y[r]."""

    def add(self, rows: Rows, x: Tensor, out: Tensor) -> None:
        """out[r] += x[r]."""

    def gate_whole(self, rows: Rows, x: Tensor, gate: Tensor) -> None:
        """x[r] *= σ(gate[r, 0])."""
