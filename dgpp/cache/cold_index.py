"""The prefixes on disk: which pages hold them, and which give way when none is free."""

from __future__ import annotations

from typing import NamedTuple

from dgpp.cache.cold_ops import ColdEntry, ColdUnit, Inventory
from dgpp.cache.entry import Entry, Kind, Node
from dgpp.cache.tree import PrefixTree, matching_entry


class ColdMatch(NamedTuple):
    """The first `tokens` tokens are on disk, up to `node`; `entry` is the one used for them."""

    node: Node
    entry: Entry
    tokens: int


class ColdIndex:
    """A tree like that of memory, whose nodes have pages for blocks.

    What is being written is there but not found before `settle`; one entry is written at a time.
    Entries go in order of their last use, each with the units that no other needs.
    """

    def __init__(self, pages: int, unit: int, lookahead: int, *, paged_only: bool) -> None:
        self.pages = pages
        self.tree = PrefixTree(unit, lookahead)
        self.evictions = 0
        self._free = list(range(pages - 1, -1, -1))
        self._paged_only = paged_only
        self._entries: dict[int, Entry] = {}
        self._blobs: dict[int, tuple[int, ...]] = {}
        self._busy: dict[int, int] = {}
        self._writing: set[Node] = set()
        self._made = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used(self) -> int:
        """Pages that hold something."""
        return self.pages - len(self._free)

    def find(self, ids: bytes, tokens: int) -> ColdMatch | None:
        """The longest prefix of the packed `ids`, at most `tokens` long, that can be read back."""
        node = self.tree.walk(ids, tokens)
        while node in self._writing and node.parent is not None:
            node = node.parent
        if not self._paged_only:
            while node.parent is not None:
                entry = matching_entry(node, ids, tokens, self.tree.unit)
                if entry is not None and node not in self._writing:
                    return ColdMatch(node, entry, entry.position)
                node = node.parent
            return None
        below = self._entry_below(node)
        if below is None or node.parent is None:
            return None
        return ColdMatch(node, below, node.depth * self.tree.unit)

    def holds(self, ids: bytes, position: int) -> bool:
        """Whether an entry of exactly these ids is here or being written."""
        node = self.tree.walk(ids, position)
        return node.depth * self.tree.unit == position and b"" in node.entries

    def pages_to(self, node: Node, beyond: int) -> tuple[int, ...]:
        """The pages of the way to `node` after its first `beyond` units, in order."""
        found: list[tuple[int, ...]] = []
        while node.parent is not None and node.depth > beyond:
            found.append(node.blocks)
            node = node.parent
        return tuple(page for pages in reversed(found) for page in pages)

    def blob(self, entry: Entry) -> tuple[int, ...]:
        return self._blobs[entry.number]

    # Writing and losing ------------------------------------------------------------------------

    def write(
        self, ids: bytes, position: int, kind: Kind, asked: int, each: int, blob: int
    ) -> tuple[Entry, list[Node]] | None:
        """Make room for the first `position` tokens of `ids`: `each` pages a unit, `blob` for the
        snapshot. The entry, not found before `settle`, and the nodes that are new; None where
        there are no pages for it."""
        tree = self.tree
        depth = position // tree.unit
        node = tree.walk(ids, position)
        while len(self._free) < (depth - node.depth) * each + blob:
            if not self._evict_one():
                return None
            # What was evicted may have been on this way.
            node = tree.walk(ids, position)
        pages = [self._free.pop() for _ in range((depth - node.depth) * each)]
        last = tree.grow(node, ids, depth, [-1] * (node.depth * each) + pages, each, position)
        new: list[Node] = []
        below = last
        while below is not node:
            new.append(below)
            assert below.parent is not None
            below = below.parent
        new.reverse()
        self._writing.update(new)
        entry = self._add(last, position, kind, asked, tuple(self._free.pop() for _ in range(blob)))
        self._busy[entry.number] = 1
        return entry, new

    def settle(self, entry: Entry, new: list[Node], *, ok: bool) -> None:
        """What `write` made is on disk now, or is not to be found there: then it is forgotten."""
        self._writing.difference_update(new)
        self.let_go(entry)
        if not ok:
            self.lose(entry)
        elif self._paged_only:
            self._cover(entry.node)

    def hold(self, entry: Entry) -> None:
        """`entry` is being read: it stays."""
        self._busy[entry.number] = self._busy.get(entry.number, 0) + 1
        # Used last.
        self._entries[entry.number] = self._entries.pop(entry.number)

    def let_go(self, entry: Entry) -> None:
        self._busy[entry.number] -= 1
        if not self._busy[entry.number]:
            del self._busy[entry.number]

    def lose(self, entry: Entry) -> None:
        """Forget `entry` and the units that no other needs; their pages are free."""
        del self._entries[entry.number]
        del entry.node.entries[entry.tail]
        self._free.extend(reversed(self._blobs.pop(entry.number)))
        node = entry.node
        while not node.children and not node.entries and node.parent is not None:
            self._free.extend(reversed(node.blocks))
            above = node.parent
            self.tree.remove(node)
            node = above

    def lose_from(self, node: Node) -> None:
        """Forget `node` and all that lies on ways through it, since it cannot be read."""
        for entry in list(self._entries.values()):
            way: Node | None = entry.node
            while way is not None and way.depth > node.depth:
                way = way.parent
            if way is node and entry.number not in self._busy:
                self.lose(entry)

    def adopt(self, inventory: Inventory) -> None:
        """Take over what an earlier run left; units out of order or pages out of range are left
        out."""
        free = set(self._free)
        nodes: dict[int, Node] = {}
        for unit in inventory.units:
            parent = self.tree.root if unit.parent < 0 else nodes.get(unit.parent)
            if parent is None or not free.issuperset(unit.pages) or unit.key in parent.children:
                continue
            free.difference_update(unit.pages)
            nodes[unit.pages[0]] = self.tree.hang(parent, unit.key, unit.pages)
        for kept in inventory.entries:
            node = nodes.get(kept.last)
            if node is None or node.entries or not free.issuperset(kept.blob):
                continue
            free.difference_update(kept.blob)
            self._add(node, kept.position, Kind(kept.kind), kept.asked, kept.blob)
        self._free = sorted(free, reverse=True)
        for entry in list(self._entries.values()):
            if self._paged_only and entry.node.children:
                self.lose(entry)
        for node in sorted(nodes.values(), key=lambda each: -each.depth):
            if not node.children and not node.entries:
                self._free.extend(node.blocks)
                self.tree.remove(node)

    def unit_of(self, node: Node) -> ColdUnit:
        """`node` as the disk is told of it."""
        assert node.parent is not None
        parent = node.parent.blocks[0] if node.parent.blocks else -1
        return ColdUnit(node.blocks, parent, node.key)

    def entry_of(self, entry: Entry) -> ColdEntry:
        blob = self._blobs[entry.number]
        last = entry.node.blocks[0]
        return ColdEntry(last, entry.position, entry.kind.value, entry.asked, blob)

    def check(self) -> None:
        """Every page is free or belongs to one unit or entry."""
        held = [page for node in self.tree.all_nodes() for page in node.blocks]
        held += [page for blob in self._blobs.values() for page in blob]
        assert sorted(held + self._free) == list(range(self.pages))

    def _add(
        self, node: Node, position: int, kind: Kind, asked: int, blob: tuple[int, ...]
    ) -> Entry:
        entry = Entry(self._made, node, position, kind, -1, 1, asked)
        self._made += 1
        node.entries[b""] = entry
        self._entries[entry.number] = entry
        self._blobs[entry.number] = blob
        return entry

    def _cover(self, node: Node) -> None:
        """An entry at `node` serves every cut on its way: others there are needed no more."""
        above = node.parent
        while above is not None:
            for entry in list(above.entries.values()):
                if entry.number not in self._busy:
                    self.lose(entry)
            above = above.parent

    def _evict_one(self) -> bool:
        victim = next((e for e in self._entries.values() if e.number not in self._busy), None)
        if victim is None:
            return False
        self.evictions += 1
        self.lose(victim)
        return True

    def _entry_below(self, node: Node) -> Entry | None:
        """Some entry whose way leads through `node` and that is not being written."""
        while True:
            ready = (e for e in node.entries.values() if node not in self._writing)
            entry = next(ready, None)
            if entry is not None:
                return entry
            below = next((n for n in node.children.values() if n not in self._writing), None)
            if below is None:
                return None
            node = below
