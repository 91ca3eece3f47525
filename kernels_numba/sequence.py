"""Operations whose rows reach back into their own request: windows, convolutions, recurrences.

Rows of a slot stand together in a step, in the order of their positions.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from kernels_numba.backend import Attention, Backend, Rows, Tensor


@runtime_checkable
class SequenceBackend(Backend, Protocol):
    """A backend that has these operations too."""

    def split_rows(
        self, rows: Rows, qkv: Tensor, attention: Attention, queries: Tensor, kv: Tensor
    ) -> None:
        """As `rotary_cache_write`, but k and v go to the rows of `kv`, side by side."""

    def attend_window(
        self,
        rows: Rows,
        queries: Tensor,
        attention: Attention,
        kv: Tensor,
        ring: Any,
        out: Tensor,
    ) -> None:
        """out[r] = attention of row r over the last `attention.window` positions of its slot: those
        of this step from `kv`, earlier ones from `ring`."""

    def ring_write(self, rows: Rows, values: Tensor, ring: Any) -> None:
        """Row r of `values` becomes the row of its position in its slot's ring."""
