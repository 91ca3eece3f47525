"""How hits of the prefix cache fall as more conversations take turns than fit.

usage: python scripts/bench_eviction.py

Conversations of three turns, one turn each in turn, over a cache of 43 snapshots, and over one of
blocks alone with room for 24 conversations. Prints the share of second and third turns that found
their last turn. Takes half a minute; deterministic.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "cache"))

from cache_drive import share_hit
from msgspec.structs import replace

from dgpp.bench.table import aligned
from dgpp.cache.shape import CacheShape

COUNTS = (8, 16, 20, 24, 32, 40, 43, 48, 64, 96, 128, 192, 256)
SNAPSHOTS, FIT = 43, 24


def main() -> None:
    fixed = CacheShape(
        align=16, block_tokens=16, chunk=512, snapshots=SNAPSHOTS, paged_only=False, min_tokens=0
    )
    paged = replace(fixed, snapshots=4096, paged_only=True)
    header = ("conversations", f"{SNAPSHOTS} snapshots", f"blocks for {FIT}")
    rows = []
    for count in COUNTS:
        shares = share_hit(fixed, 8000, count), share_hit(paged, 26 * FIT, count)
        rows.append((str(count), *(f"{share:.0%}" for share in shares)))
    print("\n".join(aligned(header, rows)))


if __name__ == "__main__":
    main()
