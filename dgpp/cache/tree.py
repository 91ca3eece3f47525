"""The tree of cached prefixes: every node one unit of tokens, matched by the exact ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from dgpp.cache.entry import Entry, Node

ID_BYTES = 4
DIGEST_BYTES = 16


def unit_digest(parent: bytes, key: bytes) -> bytes:
    """Names a prefix in 16 bytes: that of its last unit, chained to the units before."""
    return hashlib.blake2b(key, key=parent, digest_size=DIGEST_BYTES).digest()


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
        self.root = Node(None, b"", (), b"")
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

    def key(self, ids: bytes, depth: int) -> bytes:
        """The key of the unit after `depth` others."""
        start = depth * self._step
        return ids[start : start + self._step + self._ahead]

    def tail(self, ids: bytes, node: Node, position: int) -> bytes:
        """What an entry of `position` tokens at `node` must match beyond it."""
        start = node.depth * self._step
        end = position * ID_BYTES
        return ids[start : end + self._ahead] if end > start else b""

    def grow(self, node: Node, key: bytes, blocks: tuple[int, ...]) -> Node:
        """A new child of `node`, which had none for `key`."""
        child = Node(node, key, blocks, unit_digest(node.digest, key))
        node.children[key] = child
        self.nodes += 1
        return child

    def remove(self, node: Node) -> None:
        """Take out `node`, which has neither children nor entries."""
        assert node.parent is not None
        del node.parent.children[node.key]
        node.gone = True
        self.nodes -= 1

    def path(self, node: Node) -> list[Node]:
        """The nodes from the first unit to `node`."""
        found: list[Node] = []
        while node.parent is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def digests(self, ids: bytes, node: Node, tokens: int) -> Iterator[tuple[int, bytes]]:
        """(position, digest) of the units of `ids` after `node`, up to `tokens`."""
        digest = node.digest
        for depth in range(node.depth, tokens // self.unit):
            digest = unit_digest(digest, self.key(ids, depth))
            yield (depth + 1) * self.unit, digest

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
    most = min(len(first), len(second))
    if first[:most] == second[:most]:
        return most // ID_BYTES
    low = next(i for i in range(most) if first[i] != second[i])
    return low // ID_BYTES


def blocks_of(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The blocks of a path, in order."""
    return tuple(block for node in nodes for block in node.blocks)
