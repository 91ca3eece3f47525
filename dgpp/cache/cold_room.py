"""How the disk tier's space is cut into pages."""

from __future__ import annotations

from typing import NamedTuple

from dgpp.errors import ConfigError

ALIGNMENT = 4096
"""What direct transfers need of sizes, places and addresses."""
GIB = 1 << 30


def page_bytes(block_bytes: int) -> int:
    """Bytes of the page that holds a block of `block_bytes`."""
    return -(-max(1, block_bytes) // ALIGNMENT) * ALIGNMENT


def blob_pages(snapshot_bytes: int, page_size: int) -> int:
    """Pages of a snapshot; 0 where blocks hold all state."""
    return -(-snapshot_bytes // page_size)


class ColdRoom(NamedTuple):
    """What a rank's disk holds: `pages`, of which a snapshot takes `blob_pages`."""

    pages: int = 0
    blob_pages: int = 0


def cold_room(gib: float, block_bytes: int, snapshot_bytes: int, blocks: int) -> ColdRoom:
    """The pages of `gib`, none for 0. Raises ConfigError where a request of `blocks`, the longest
    there can be, does not fit."""
    if not gib:
        return ColdRoom()
    size = page_bytes(block_bytes)
    blob = blob_pages(snapshot_bytes, size)
    pages = int(gib * GIB) // size
    if pages < blocks + blob:
        least = (blocks + blob) * size / GIB
        raise ConfigError(
            f"nvme_cache.capacity_gib: {gib:g}, the longest request alone takes {least:.3g}"
        )
    return ColdRoom(pages, blob)
