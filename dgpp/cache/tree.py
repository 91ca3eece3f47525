"""The tree of cached prefixes: every node one unit of tokens, matched by the exact ids."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from dgpp.cache.entry import Entry, Node

ID_BYTES = 4
CLIMB = 64
"""Units looked through for the entry that a hit between entries belongs to."""


class PrefixTree:
    """Prefixes of packed ids in units of `unit` tokens, `lookahead` more of which must match.

    A unit is a whole number of blocks. What a node holds is right for every prompt that goes
    through it, since state depends on the ids before it alone, and drafts on `lookahead` after.
    """

    __slots__ = ("_ahead", "_step", "nodes", "root", "unit")

    def __init__(self, unit: int, lookahead: int = 0) -> None:
        self.unit = unit
        self._step = unit * ID_BYTES
        self._ahead = lookahead * ID_BYTES
        self.root = Node(None, b"", ())
        self.nodes = 0

    def walk(self, ids: bytes, tokens: int, start: Node | None = None) -> Node:
        """The deepest node on the way of `ids` that ends at or before `tokens`.

        `start`, where given, is known to lie on that way.
        """
        node, step, ahead = start or self.root, self._step, self._ahead
        for at in range(node.depth * step, tokens * ID_BYTES - step + 1, step):
            child = node.children.get(ids[at : at + step + ahead])
            if child is None:
                break
            node = child
        return node

    def find(self, ids: bytes, tokens: int) -> tuple[Node, list[int]]:
        """`walk` from the root, and the blocks on the way."""
        node, step, width = self.root, self._step, self._step + self._ahead
        blocks: list[int] = []
        for at in range(0, tokens * ID_BYTES - step + 1, step):
            child = node.children.get(ids[at : at + width])
            if child is None:
                break
            node = child
            blocks += node.blocks
        return node, blocks

    def tail(self, ids: bytes, node: Node, position: int) -> bytes:
        """What an entry of `position` tokens at `node` must match beyond it."""
        start = node.depth * self._step
        end = position * ID_BYTES
        return ids[start : end + self._ahead] if end > start else b""

    def grow(
        self, node: Node, ids: bytes, depth: int, blocks: Sequence[int], each: int, read: int
    ) -> Node:
        """New nodes from `node`, which has none for the next unit of `ids`, down to `depth`.

        `blocks` are those of the whole prefix, `each` a unit; decode wrote the rows from position
        `read` on. Returns the deepest node.
        """
        step, width, unit = self._step, self._step + self._ahead, self.unit
        self.nodes += depth - node.depth
        for at in range(node.depth, depth):
            key = ids[at * step : at * step + width]
            held = tuple(blocks[at * each : at * each + each])
            decoded = node.decoded + (unit if (at + 1) * unit > read else 0)
            child = Node(node, key, held, zlib.crc32(key, node.mark), decoded)
            node.children[key] = child
            node = child
        return node

    def hang(self, parent: Node, key: bytes, blocks: tuple[int, ...]) -> Node:
        """A new child of `parent`, which has none for `key`."""
        child = Node(parent, key, blocks, zlib.crc32(key, parent.mark))
        parent.children[key] = child
        self.nodes += 1
        return child

    def remove(self, node: Node) -> None:
        """Take out `node`, which has neither children nor entries."""
        assert node.parent is not None
        del node.parent.children[node.key]
        node.gone = True
        self.nodes -= 1

    def marks(self, ids: bytes, node: Node, tokens: int) -> list[int]:
        """The marks of the units of `ids` after `node`, up to `tokens`."""
        step, width, mark, crc = self._step, self._step + self._ahead, node.mark, zlib.crc32
        starts = range(node.depth * step, tokens * ID_BYTES - step + 1, step)
        return [mark := crc(ids[at : at + width], mark) for at in starts]

    def all_nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        pending = list(self.root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())


def matching_entry(node: Node, ids: bytes, tokens: int, unit: int) -> Entry | None:
    """The longest entry at `node` whose tail `ids` continue with, ending at or before `tokens`."""
    best: Entry | None = None
    start = node.depth * unit * ID_BYTES
    for tail, entry in node.entries.items():
        if entry.position > tokens or ids[start : start + len(tail)] != tail:
            continue
        if best is None or entry.position > best.position:
            best = entry
    return best


def common_tokens(first: bytes, second: bytes) -> int:
    """How many packed ids two stretches have in common at their beginning."""
    if first[:ID_BYTES] != second[:ID_BYTES]:
        return 0
    most = min(len(first), len(second))
    if first[:most] == second[:most]:
        return most // ID_BYTES
    low = next(i for i in range(most) if first[i] != second[i])
    return low // ID_BYTES


def nearest_entry(node: Node) -> Entry | None:
    """The entry whose way leads through `node`, where there is one only; else the one above."""
    below = node
    for _ in range(CLIMB):
        if len(below.children) != 1:
            break
        (below,) = below.children.values()
        if below.entries:
            return next(iter(below.entries.values()))
    for _ in range(CLIMB):
        if node.entries or node.parent is None:
            break
        node = node.parent
    return next(iter(node.entries.values()), None)
