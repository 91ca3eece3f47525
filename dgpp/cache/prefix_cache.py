"""The prefix cache of one scheduler: which prefixes are kept, who shares them, who gives way.

Pure and alike on every rank: it moves block numbers and snapshot numbers, never bytes. What it
decides is folded into a digest of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.cache.entry import Entry, Kind, Node
from dgpp.cache.ghosts import Ghost, Ghosts
from dgpp.cache.judge import Judge
from dgpp.cache.lease import Lease, Match
from dgpp.cache.retention import Retention
from dgpp.cache.shape import CacheShape
from dgpp.cache.statistics import CacheCounters, CacheStatistics
from dgpp.cache.tree import PrefixTree, matching_entry, nearest_entry
from dgpp.sched.blocks import BlockPool
from dgpp.sched.operations import OperationStream, Sink
from dgpp.sched.plan import Keep

RESERVE_PARTS, MOST_RESERVE = 16, 128
"""Blocks that are kept free of the cache: this part of the pool, but no more than this many."""
EASE = 12
"""Blocks that a tick evicts towards that."""


class PrefixCache:
    """Entries over the blocks of `pool`.

    Per tick first `begin_tick`. A prompt is looked up with `match` and takes what was found with
    `attach`; `insert` keeps what a choice has computed, `close` what it leaves behind. `reclaim`
    makes free blocks out of cached ones, least valuable first.
    """

    def __init__(self, pool: BlockPool, shape: CacheShape, sink: Sink | None = None) -> None:
        self.shape = shape
        self.counters = CacheCounters()
        self.tree = PrefixTree(shape.unit, shape.lookahead)
        self.ghosts = Ghosts()
        self.decisions = OperationStream(sink)
        self.newest: Entry | None = None
        """The entry that `insert` made last."""
        self._pool = pool
        self._reserve = min(pool.total // RESERVE_PARTS, MOST_RESERVE)
        self._retention = Retention()
        self._judge = Judge()
        self._snapshots = list(range(shape.snapshots - 1, -1, -1))
        self._entries: dict[int, Entry] = {}
        self._made = 0
        self._tick = 0

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[Entry]:
        """All of them, oldest first."""
        return list(self._entries.values())

    def statistics(self) -> CacheStatistics:
        pool = self._pool
        slots, entries = self.shape.snapshots, len(self._entries)
        return CacheStatistics(slots, entries, pool.cached, pool.reclaimable, self.counters)

    def has(self, entry: Entry) -> bool:
        """Whether `entry` is still here."""
        return entry.number in self._entries

    def way(self, node: Node) -> list[Node]:
        """The nodes from the first unit to `node`."""
        found: list[Node] = []
        while node.parent is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def begin_tick(self) -> None:
        """Entries that the tick before lent may give way again."""
        self._tick += 1

    # Looking up --------------------------------------------------------------------------------

    def match(self, ids: bytes, tokens: int) -> Match:
        """The longest prefix of the `tokens` packed `ids` that is cached, the ids excluded that are
        read in any case."""
        shape = self.shape
        most = shape.most(tokens)
        node, blocks = self.tree.find(ids, most)
        entry = matching_entry(node, ids, most, shape.unit) if node.entries else None
        if not shape.paged_only:
            while entry is None and node.parent is not None:
                node = node.parent
                entry = matching_entry(node, ids, most, shape.unit)
            del blocks[node.depth * shape.unit_blocks :]
        found, tail, decoded = node.depth * shape.unit, -1, node.decoded
        if entry is not None and entry.tail:
            tail = entry.tail_block
            if entry.kind is Kind.CLOSE:
                decoded += entry.position - found
            found = entry.position
        snapshot = -1 if entry is None or shape.paged_only else entry.snapshot
        return Match(node, entry, found, tuple(blocks), snapshot, tail, decoded)

    def missed(self, ids: bytes, tokens: int, match: Match) -> Ghost | None:
        """The longest evicted prefix of the prompt that goes beyond `match`."""
        if not len(self.ghosts):
            return None
        marks = self.tree.marks(ids, match.node, self.shape.most(tokens))
        return self.ghosts.longest(marks)

    def hold(self, match: Match) -> None:
        """What `match` found stays as it is through this tick."""
        if match.entry is not None:
            match.entry.tick = self._tick

    def attach(self, match: Match, owner: str, missed: Ghost | None = None) -> Lease:
        """`owner`, who has become an owner of its blocks, takes what `match` found."""
        counters = self.counters
        lease = Lease(match.node, kept=match.tokens)
        self.hold(match)
        if missed is not None:
            self._returned(lease, missed.line, missed.used)
        if not match.tokens:
            counters.misses += 1
            return lease
        counters.hits += 1
        counters.tokens_saved += match.tokens
        entry = match.entry or nearest_entry(match.node)
        if entry is not None and entry.number in self._entries:
            self._use(entry, lease, match, learn=missed is None)
        if match.snapshot >= 0:
            counters.arena_attaches += 1
        self._note("attach", owner, match.tokens, match.snapshot)
        return lease

    def _use(self, entry: Entry, lease: Lease, match: Match, *, learn: bool) -> None:
        """`entry` is what `match` found, or the nearest to it."""
        retention, exact = self._retention, match.entry is not None
        beside = not exact and match.tokens + 2 * self.shape.unit > entry.asked
        if not (exact or beside or entry.kind.anchor):
            return
        hits, settled = retention.standing(entry)
        if learn and not entry.kind.anchor:
            self._returned(lease, entry.line, entry.used)
        if beside and not entry.kind.anchor:
            # The conversation goes on beside the end of its last turn, as templates make it that
            # leave out earlier reasoning. That end has had its day.
            retention.pass_over(entry)
        else:
            retention.touch(entry)
        if not entry.kind.anchor:
            lease.hits, lease.settled = hits + 1, settled
            lease.entry = entry if exact else None

    def _returned(self, lease: Lease, line: int, used: int) -> None:
        retention = self._retention
        lease.line = line
        retention.returned(used)
        if self._judge.returns(line, used, retention.weight):
            retention.keep(self._judge.keeping)

    # Keeping -----------------------------------------------------------------------------------

    def insert(
        self,
        lease: Lease,
        owner: str,
        ids: bytes,
        blocks: Sequence[int],
        position: int,
        kind: Kind,
        *,
        read: int,
        slot: int = -1,
    ) -> Keep | None:
        """Keep the first `position` tokens of the packed `ids`, whose state `blocks` hold.

        `ids` go on for the lookahead. The prompt has `read` tokens: rows from there on were written
        by decode. Rings and fixed state come from the lease's rolling snapshot where it is at
        `position`, else from `slot`. Returns what the engine must copy, None for nothing.
        """
        shape, tree = self.shape, self.tree
        depth, rest = divmod(position, shape.unit)
        known_way = not lease.node.gone and lease.node.depth <= depth
        node = tree.walk(ids, position, lease.node if known_way else None)
        key = tree.tail(ids, node, position) if node.depth == depth and rest else b""
        if node.depth == depth and (known := node.entries.get(key)) is not None:
            self.counters.duplicates += 1
            self._continue(lease, node, known)
            return None
        taken = self._take_snapshot(lease, position)
        if taken < 0:
            self.counters.skipped_no_slot += 1
            return None
        copy = self._tail_copy() if rest else -1
        if rest and copy < 0:
            self.counters.skipped_no_block += 1
            self._give_back(lease, taken)
            return None
        if node.gone:
            # The snapshot was the one of an entry on this way.
            node = tree.walk(ids, position)
        made = depth - node.depth
        each = shape.unit_blocks
        self._pool.cache(blocks[node.depth * each : depth * each])
        node = tree.grow(node, ids, depth, blocks, each, read)
        weight = max(1, made) if shape.paged_only else 1
        entry = Entry(self._made, node, position, kind, taken, weight, asked=read)
        entry.tail, entry.tail_block = tree.tail(ids, node, position), copy
        self._made += 1
        self._admit(entry, lease)
        self.newest = entry
        self._count(kind)
        self._note(kind.value, owner, position, taken)
        return self._keep(lease, slot, taken, blocks[depth * shape.unit_blocks :], copy)

    def _admit(self, entry: Entry, lease: Lease) -> None:
        """Put `entry` into its place, and let it replace what it continues."""
        entry.node.entries[entry.tail] = entry
        self._entries[entry.number] = entry
        entry.tick = self._tick
        lease.node, lease.kept = entry.node, entry.position
        retention, paged = self._retention, self.shape.paged_only
        if entry.kind.anchor:
            retention.add(entry, entry.weight if paged else 0)
            if not paged:
                lease.anchors.append(entry)
            return
        old, lease.entry = lease.entry, entry
        if old is not None and not self._leads_to(old, entry):
            old = None
        came = entry.weight if paged or old is None else 0
        retention.add(entry, came, lease.hits, settled=lease.settled)
        for anchor in lease.anchors:
            # A snapshot for other prompts is worth its room once one of them came.
            if self._leads_to(anchor, entry) and not retention.standing(anchor)[0]:
                retention.replace(anchor, entry)
        lease.anchors.clear()
        if lease.line < 0:
            lease.line = entry.number
        entry.line = lease.line
        if old is not None:
            retention.replace(old, entry)
            if paged:
                # What it kept lies on the way of the new one, where any cut can be shared.
                retention.resize(entry, entry.weight + old.weight)
                self._forget(old)
        self._judge.put(entry.line, entry.weight, retention.weight)

    def _continue(self, lease: Lease, node: Node, known: Entry) -> None:
        lease.node, lease.kept = node, known.position
        known.tick = self._tick
        if not known.kind.anchor:
            lease.entry = known

    def _leads_to(self, old: Entry, new: Entry) -> bool:
        """Whether `old` is still there, on the way to `new` and on no other."""
        node: Node | None = new.node
        if old.number not in self._entries:
            return False
        while node is not None and node.depth > old.node.depth:
            node = node.parent
        return node is old.node and not old.tail and len(node.children) <= 1

    def _count(self, kind: Kind) -> None:
        if kind is Kind.CLOSE:
            self.counters.close_entries += 1
        else:
            self.counters.snapshots += 1
            self.counters.head_snapshots += kind is Kind.HEAD

    def _keep(
        self, lease: Lease, slot: int, taken: int, beyond: Sequence[int], copy: int
    ) -> Keep | None:
        fixed = not self.shape.paged_only
        if fixed and taken == lease.rolling:
            lease.rolling = -1
            fixed = False
        if fixed:
            self.counters.arena_snapshots += 1
        if not fixed and copy < 0:
            return None
        source = beyond[0] if copy >= 0 else -1
        return Keep(slot, taken if fixed else -1, source, copy)

    def roll(self, lease: Lease, owner: str, slot: int, position: int) -> Keep | None:
        """Copy what `slot` owns after `position` tokens, for the entry that its end will make."""
        if lease.rolling < 0:
            lease.rolling = self._free_snapshot()
            if lease.rolling < 0:
                self.counters.skipped_no_slot += 1
                return None
        lease.rolling_at = position
        self.counters.rolling_snapshots += 1
        self.counters.arena_snapshots += 1
        self._note("rolling", owner, position, lease.rolling)
        return Keep(slot, lease.rolling)

    def spare_snapshot(self) -> int:
        """A snapshot that is nobody's, −1 where there is none."""
        return self._free_snapshot()

    def return_snapshot(self, snapshot: int) -> None:
        if snapshot >= 0:
            self._snapshots.append(snapshot)

    def take_back(
        self,
        cold: Entry,
        ids: bytes,
        blocks: Sequence[int],
        first: int,
        position: int,
        snapshot: int,
    ) -> None:
        """What the disk had of `ids` is in `blocks`, from unit `first` to `position`, and, where
        there is fixed state, in `snapshot`: it becomes the cache's, as far as it is not there."""
        shape, tree, pool = self.shape, self.tree, self._pool
        depth, each = position // shape.unit, shape.unit_blocks
        if shape.paged_only:
            snapshot = self._free_snapshot()
        node = tree.walk(ids, position)
        known = node.depth == depth and b"" in node.entries
        if snapshot < 0 or node.depth < first or known:
            # What it goes on from is gone, or somebody else has computed it meanwhile.
            pool.release(blocks)
            self.return_snapshot(snapshot)
            return
        made = depth - node.depth
        pool.cache(blocks[(node.depth - first) * each :])
        node = tree.grow(node, ids, depth, [-1] * (first * each) + list(blocks), each, cold.asked)
        pool.release(blocks)
        weight = max(1, made) if shape.paged_only else 1
        kind = Kind.TAIL if shape.paged_only else cold.kind
        entry = Entry(self._made, node, position, kind, snapshot, weight, cold.asked)
        self._made += 1
        self._admit(entry, Lease(tree.root))
        # No plan copies anything for it: who needs its room now may have it.
        entry.tick = -1

    def leave(self, lease: Lease) -> None:
        """The choice is gone; what it kept for itself is free."""
        if lease.rolling >= 0:
            self._snapshots.append(lease.rolling)
            lease.rolling = -1

    def _take_snapshot(self, lease: Lease, position: int) -> int:
        if lease.rolling >= 0 and lease.rolling_at == position:
            return lease.rolling
        return self._free_snapshot()

    def _give_back(self, lease: Lease, snapshot: int) -> None:
        if snapshot != lease.rolling:
            self._snapshots.append(snapshot)

    def _free_snapshot(self) -> int:
        if not self._snapshots:
            victim = self._retention.pick(lambda entry: entry.tick != self._tick and not entry.busy)
            if victim is not None:
                self._evict(victim)
        return self._snapshots.pop() if self._snapshots else -1

    def _tail_copy(self) -> int:
        """A block of the cache's own, where one is free."""
        if not self._pool.free:
            return -1
        block = self._pool.reserve(1)
        self._pool.cache(block)
        self._pool.release(block)
        return block[0]

    # Giving way --------------------------------------------------------------------------------

    def reclaim(self, blocks: int) -> bool:
        """Evict until `blocks` are free; False where the cache holds too little for that."""
        pool = self._pool
        while pool.free < blocks:
            if not pool.reclaimable or not self._shrink(blocks):
                return False
        return True

    def ease(self) -> None:
        """Evict a little where few blocks are free, so that who comes next need not wait for all of
        it."""
        pool = self._pool
        free = pool.free
        if free < self._reserve and pool.reclaimable >= EASE:
            self._shrink(min(free + EASE, self._reserve))

    def _shrink(self, blocks: int) -> bool:
        """Evict one entry, or as much of its end as makes `blocks` free; False where none can."""
        victim = self._retention.pick(self._frees) or self._retention.pick(self._is_leaf)
        if victim is None:
            return False
        if self.shape.paged_only:
            self._trim(victim, blocks)
        else:
            self._evict(victim)
        return True

    def _is_leaf(self, entry: Entry) -> bool:
        """Whether something above `entry` may come free when it goes.

        What this tick's plan copies from must stay as it is until that plan has run.
        """
        if entry.node.children:
            return False
        copied = not self.shape.paged_only or entry.tail_block >= 0
        return not (copied and (entry.tick == self._tick or entry.busy))

    def _frees(self, entry: Entry) -> bool:
        """Whether blocks come free at once when `entry` goes."""
        if not self._is_leaf(entry):
            return False
        last = entry.tail_block if entry.tail_block >= 0 else entry.node.blocks[-1]
        return self._pool.references(last) == 1

    def _trim(self, entry: Entry, blocks: int) -> None:
        """Shorten `entry` unit by unit until `blocks` are free; where nothing is left, it goes."""
        node, pool, least = entry.node, self._pool, max(self.shape.min_tokens, 1)
        self._note_eviction(entry)
        del node.entries[entry.tail]
        weight = entry.weight - bool(entry.tail)
        self._drop_tail(entry)
        lacking = blocks - pool.free
        gone: list[int] = []
        kept = False
        while not node.children and not node.entries and node.parent is not None:
            rest = node.depth * self.shape.unit
            kept = rest >= least and lacking <= 0
            if kept:
                break
            for block in reversed(node.blocks):
                lacking -= pool.references(block) == 1
                gone.append(block)
            above = node.parent
            self.tree.remove(node)
            weight -= 1
            node = above
        # In the order of the prefix, as they were reserved.
        gone.reverse()
        pool.uncache(gone)
        if not kept:
            self._lose(entry)
            return
        entry.node, entry.position, entry.tail = node, node.depth * self.shape.unit, b""
        node.entries[b""] = entry
        self._retention.resize(entry, max(1, weight))

    def _evict(self, entry: Entry) -> None:
        node = entry.node
        self._note_eviction(entry)
        self._forget(entry)
        gone: list[int] = []
        while not node.children and not node.entries and node.parent is not None:
            above = node.parent
            gone.extend(reversed(node.blocks))
            self.tree.remove(node)
            node = above
        gone.reverse()
        self._pool.uncache(gone)

    def _drop_tail(self, entry: Entry) -> None:
        if entry.tail_block >= 0:
            self._pool.uncache((entry.tail_block,))
            entry.tail_block = -1

    def _forget(self, entry: Entry) -> None:
        """Take `entry` out; its nodes stay."""
        del entry.node.entries[entry.tail]
        self._drop_tail(entry)
        self._lose(entry)

    def _lose(self, entry: Entry) -> None:
        del self._entries[entry.number]
        self._retention.remove(entry)
        self._snapshots.append(entry.snapshot)

    def _note_eviction(self, entry: Entry) -> None:
        self.counters.evictions += 1
        self.ghosts.add(entry.node.mark, entry.position, entry.line, entry.used)
        self._note("evict", str(entry.number), entry.position, entry.snapshot)

    def _note(self, operation: str, owner: str, position: int, snapshot: int) -> None:
        self.decisions.cache(operation, owner, position, snapshot)
