"""engine → scheduler."""

from __future__ import annotations

from typing import Literal

import msgspec

from dgpp.cache.cold_ops import Inventory


class ColdEnded(msgspec.Struct, frozen=True):
    """Operation `op` of the disk tier ended on this rank; `error` says why where not `ok`.

    The first one says what the disk held at the start: `inventory`, with its `points`. `kind` is
    what the others were, `took_s` their time in seconds.
    """

    op: int
    ok: bool
    points: tuple[int, ...] = ()
    inventory: Inventory | None = None
    error: str = ""
    kind: Literal["inventory", "spill", "restore"] = "inventory"
    took_s: float = 0.0
