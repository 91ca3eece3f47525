"""The disk tier as the scheduler drives it: what is spilled, what is read back, in which order.

Everything that a disk does is an operation with a number. It is begun by a plan and ends by a
record, on every rank alike: where one rank failed, it has failed on all.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from dgpp.cache.cold_contents import ColdContents
from dgpp.cache.cold_index import ColdIndex, ColdMatch
from dgpp.cache.cold_ops import (
    INVENTORY,
    ColdDone,
    ColdRecord,
    Inventory,
    Restore,
    Spill,
    point_after,
)
from dgpp.cache.entry import Entry, Node
from dgpp.cache.prefix_cache import PrefixCache
from dgpp.sched.blocks import BlockPool

WAITING_SPILLS = 64
"""Entries that may wait to be spilled; the oldest is skipped for a further one."""


class TierShape(msgspec.Struct, frozen=True):
    """`pages` on each rank's disk; a snapshot takes `blob_pages`. Prefixes of `min_tokens` and more
    are spilled. `lead` tokens more than in memory make a restore worth its while."""

    pages: int
    blob_pages: int
    min_tokens: int
    lead: int


class TierCounters(msgspec.Struct):
    """Totals since the start, in the words of GET /metrics."""

    spills: int = 0
    spilled: int = 0
    spill_failed: int = 0
    spill_skipped: int = 0
    restores: int = 0
    restored: int = 0
    restore_failed: int = 0
    tokens_restored: int = 0
    blocks_shared: int = 0
    evictions: int = 0


class TierStatistics(msgspec.Struct, frozen=True):
    """Levels now, and the totals."""

    pages: int
    pages_used: int
    entries: int
    pending: int
    counters: TierCounters


class _Spilling(NamedTuple):
    entry: Entry
    new: list[Node]
    source: Entry
    blocks: tuple[int, ...]
    record: ColdRecord


class _Restoring(NamedTuple):
    match: ColdMatch
    ids: bytes
    first: int
    blocks: tuple[int, ...]
    snapshot: int


class Tier:
    """`spills` and `restores` are what the next plan must tell the engine."""

    def __init__(self, shape: TierShape, cache: PrefixCache, pool: BlockPool) -> None:
        self.shape = shape
        self.counters = TierCounters()
        self.spills: list[Spill] = []
        self.restores: list[Restore] = []
        self.notes: list[str] = []
        self._cache = cache
        self._pool = pool
        memory = cache.shape
        self.index = ColdIndex(
            shape.pages, memory.unit, memory.lookahead, paged_only=memory.paged_only
        )
        self._queue: deque[tuple[Entry, bytes]] = deque()
        self._spilling: tuple[int, _Spilling] | None = None
        self._restoring: tuple[int, _Restoring] | None = None
        self._inventory: Inventory | None = None
        # Number 0 is the inventory; nothing is spilled before it is taken over.
        self._operations = INVENTORY + 1
        self._open = False
        self._point = 0

    @property
    def pending(self) -> int:
        """Operations that are out, and entries that wait to be spilled."""
        out = (self._spilling is not None) + (self._restoring is not None)
        return out + len(self._queue)

    def held(self) -> list[int]:
        """Blocks that operations hold."""
        found: list[int] = []
        if self._spilling is not None:
            found += self._spilling[1].blocks
        if self._restoring is not None:
            found += self._restoring[1].blocks
        return found

    def statistics(self) -> TierStatistics:
        self.counters.evictions = self.index.evictions
        used, entries = self.index.used, len(self.index)
        return TierStatistics(self.shape.pages, used, entries, self.pending, self.counters)

    def offer(self, inventory: Inventory) -> None:
        """What this rank's disk held at the start, to be taken over when all ranks agree."""
        self._inventory = inventory

    # Spilling ----------------------------------------------------------------------------------

    def wants(self, entry: Entry, ids: bytes) -> None:
        """A new entry of the memory: to be spilled where it is long enough and lasts so long."""
        if entry.position < self.shape.min_tokens or entry.tail:
            return
        if len(self._queue) == WAITING_SPILLS:
            self._queue.popleft()
            self.counters.spill_skipped += 1
        self._queue.append((entry, ids[: (entry.position + self._cache.shape.lookahead) * 4]))

    def begin(self) -> None:
        """Start the next spill, if none is out."""
        while self._open and self._spilling is None and self._queue:
            entry, ids = self._queue.popleft()
            if self._cache.has(entry) and not self.index.holds(ids, entry.position):
                self._spill(entry, ids)

    def _spill(self, source: Entry, ids: bytes) -> None:
        memory, each = self._cache.shape, self._cache.shape.unit_blocks
        blob = 0 if memory.paged_only else self.shape.blob_pages
        written = self.index.write(ids, source.position, source.kind, source.asked, each, blob)
        if written is None:
            self.counters.spill_skipped += 1
            return
        entry, new = written
        way = self._cache.way(source.node)
        blocks = tuple(block for node in way[len(way) - len(new) :] for block in node.blocks)
        self._pool.retain(blocks)
        source.busy += 1
        op = self._next("spill", source)
        self.counters.spills += 1
        self.counters.blocks_shared += source.node.depth * each - len(blocks)
        units = tuple(self.index.unit_of(node) for node in new)
        snapshot = -1 if memory.paged_only else source.snapshot
        record = ColdRecord(units, self.index.entry_of(entry))
        self.spills.append(Spill(op, units, blocks, record.entry, snapshot, self._point))
        self._spilling = op, _Spilling(entry, new, source, blocks, record)

    # Reading back ------------------------------------------------------------------------------

    def ahead(self, ids: bytes, tokens: int, found: int) -> ColdMatch | None:
        """What the disk has of a prompt beyond the `found` tokens that memory has, where that is
        worth reading."""
        if not self._open:
            return None
        match = self.index.find(ids, self._cache.shape.most(tokens))
        return match if match is not None and match.tokens >= found + self.shape.lead else None

    @property
    def reading(self) -> bool:
        """Whether something is being read back, so that nothing else can be."""
        return self._restoring is not None

    def restore(self, match: ColdMatch, ids: bytes) -> bool:
        """Begin to read `match` back; False where there is no room for it now."""
        memory, pool = self._cache.shape, self._pool
        node = self._cache.tree.walk(ids, match.tokens)
        pages = self.index.pages_to(match.node, node.depth)
        if not self._cache.reclaim(len(pages)):
            return False
        snapshot = -1 if memory.paged_only else self._cache.spare_snapshot()
        if snapshot < 0 and not memory.paged_only:
            return False
        # Making room may have taken away what memory had of it.
        node = self._cache.tree.walk(ids, match.tokens)
        pages = self.index.pages_to(match.node, node.depth)
        if pool.free < len(pages):
            self._cache.return_snapshot(snapshot)
            return False
        blocks = pool.reserve(len(pages))
        self.index.hold(match.entry)
        op = self._next("restore", match.entry)
        self.counters.restores += 1
        blob = () if memory.paged_only else self.index.blob(match.entry)
        self.restores.append(Restore(op, pages, blocks, blob, snapshot, self._point))
        restoring = _Restoring(match, ids, node.depth, blocks, snapshot)
        self._restoring = op, restoring
        return True

    # Ends --------------------------------------------------------------------------------------

    def done(self, done: ColdDone) -> bool:
        """An operation ended on all ranks; True where it was what prompts wait for."""
        if done.op == INVENTORY:
            self._take_over(done)
            return False
        if self._spilling is not None and self._spilling[0] == done.op:
            self._spilled(self._spilling[1], ok=done.ok)
            self._spilling = None
            return False
        if self._restoring is not None and self._restoring[0] == done.op:
            self._restored(self._restoring[1], ok=done.ok)
            self._restoring = None
            return True
        raise ValueError(f"disk tier: operation {done.op} is not out")

    def _take_over(self, done: ColdDone) -> None:
        """All ranks go on from one point of their lists, or from nothing."""
        if done.ok and self._inventory is not None:
            self.index.adopt(ColdContents.at(self._inventory, done.point).inventory())
            count = len(self.index)
            self.notes.append(f"disk tier: {count} entries of an earlier run taken over")
        elif not done.ok:
            self.notes.append("disk tier: the ranks' disks differ, nothing is taken over")
        self._point = done.point
        self._inventory, self._open = None, True

    def _spilled(self, spilling: _Spilling, *, ok: bool) -> None:
        self.index.settle(spilling.entry, spilling.new, ok=ok)
        spilling.source.busy -= 1
        self._pool.release(spilling.blocks)
        self.counters.spilled += ok
        self.counters.spill_failed += not ok
        if ok:
            self._point = point_after(self._point, spilling.record)
        else:
            position = spilling.entry.position
            self.notes.append(f"disk tier: {position} tokens could not be written")

    def _restored(self, restoring: _Restoring, *, ok: bool) -> None:
        match, index = restoring.match, self.index
        index.let_go(match.entry)
        if ok:
            self.counters.restored += 1
            self.counters.tokens_restored += match.tokens
            self._cache.take_back(
                match.entry, restoring.ids, restoring.blocks, restoring.first, match.tokens,
                restoring.snapshot,
            )  # fmt: skip
            return
        self.counters.restore_failed += 1
        self._pool.release(restoring.blocks)
        self._cache.return_snapshot(restoring.snapshot)
        self.notes.append(
            f"disk tier: {match.tokens} tokens could not be read back, they are computed again"
        )
        node = match.node
        while node.depth > restoring.first + 1 and node.parent is not None:
            node = node.parent
        index.lose_from(node)

    def _next(self, operation: str, entry: Entry) -> int:
        op = self._operations
        self._operations += 1
        self._cache.decisions.cache(operation, str(op), entry.position, entry.snapshot)
        return op
