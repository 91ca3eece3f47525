"""Where a sublayer's output goes: into the residual, in a world by way of a sum over its ranks."""

from __future__ import annotations

from dgpp.net.collective import Collective
from kernels_numba.backend import Backend, Rows, Tensor


class Fold:
    """A sublayer writes to `target`, adding to what is there where `add`, then calls `finish`.

    On one rank `target` is the residual `x` itself. In a world it is this rank's share of the
    output, and `finish` adds the shares of all ranks to the residual: x is the same on every rank
    at every edge of a sublayer. Without `adds` x becomes the sublayer's output instead.
    """

    def __init__(
        self,
        backend: Backend,
        x: Tensor,
        hidden: int,
        collective: Collective | None,
        *,
        adds: bool = True,
    ) -> None:
        self._x = x
        self._collective = collective
        self._adds = adds
        self.add = adds and collective is None
        self.target: Tensor = x if collective is None else collective.partial(backend, hidden)

    def finish(self, rows: Rows) -> None:
        """x += the sublayer's output, or = where it does not add."""
        if self._collective is not None:
            self._collective.all_reduce(rows.count, self.target, self._x, add=self._adds)

    def share_of(self, out: Tensor) -> Tensor:
        """Where a rank writes its share of `out`, without adding; then comes `total`."""
        return out if self._collective is None else self.target

    def total(self, rows: Rows, out: Tensor) -> None:
        """out = the sum of all ranks' shares."""
        if self._collective is not None:
            self.gather(rows, out)

    def gather(self, rows: Rows, out: Tensor) -> None:
        """out = Σ over ranks of `target`: rows that one rank has and the others hold as zeros."""
        assert self._collective is not None, "one rank has all rows"
        self._collective.all_reduce(rows.count, self.target, out, add=False)
