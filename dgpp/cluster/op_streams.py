"""Whether all ranks of a deployment did the same, and where they parted if not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from dgpp.cluster.messages import Operations
from dgpp.cluster.node import Node, ask_all
from dgpp.cluster.place import Place

Say = Callable[[str], object]


class Parted(NamedTuple):
    """The first record in which two streams differ, one line of each; empty: it ends before."""

    record: int
    mine: str
    other: str


def compare(place: Place, nodes: Sequence[Node], say: Say) -> list[Node]:
    """Say how the operation streams of all ranks compare; the nodes whose streams are not rank
    0's, all of them where that is missing. Raises ClusterError."""
    if not nodes:
        return []
    found = ask_all(nodes, {node.rank: Operations(place, node.rank) for node in nodes})
    first, *others = nodes
    missing = [node for node in nodes if not found[node.rank].done]
    if missing:
        say(f"op streams: missing of {', '.join(node.name for node in missing)}")
        return missing
    apart = [n for n in others if found[n.rank].digests != found[first.rank].digests]
    for node in apart:
        sides = [(side, found[side.rank].digests) for side in (first, node)]
        say(_told(first, node, where_parted(place, *sides)))
    if not apart and others:
        size = found[first.rank].size
        say(f"op streams: identical across {len(nodes)} ranks ({size} bytes)")
    return apart


def _told(first: Node, node: Node, parted: Parted) -> str:
    if parted.mine and parted.other:
        sides = f"{first.name} has {parted.mine!r}, {node.name} {parted.other!r}"
        return f"op streams: DIFFER at record {parted.record}: {sides}"
    ended, on = (node, first) if parted.mine else (first, node)
    following = parted.mine or parted.other
    return (
        f"op streams: {ended.name} ends before record {parted.record}, where {on.name} has "
        f"{following!r}; equal until there"
    )


Side: TypeAlias = tuple[Node, tuple[str, ...]]
"""A node with the digests of its stream's blocks."""


def where_parted(place: Place, mine: Side, other: Side) -> Parted:
    """Records count from 1, in what is kept of the streams."""
    (node, digests), (peer, others) = mine, other
    pairs = zip(digests, others, strict=False)
    shared = min(len(digests), len(others))
    block = next((i for i, (a, b) in enumerate(pairs) if a != b), shared)
    before = _block(place, node, block - 1)
    record = 1 + sum(_block(place, node, i).count("\n") for i in range(block))
    # A line may have begun in the block before.
    begun = before.rpartition("\n")[2]
    lines, theirs = (_lines(place, side, begun, block) for side in (node, peer))
    at = next((i for i, (a, b) in enumerate(zip(lines, theirs, strict=False)) if a != b), None)
    if at is None:
        at = min(len(lines), len(theirs))
    return Parted(
        record + at,
        lines[at] if at < len(lines) else "",
        theirs[at] if at < len(theirs) else "",
    )


def _lines(place: Place, node: Node, begun: str, block: int) -> list[str]:
    """Those that end in `block`, and the one that begins in it."""
    text = begun + _block(place, node, block)
    while not text.endswith("\n"):
        block += 1
        line, cut, _ = _block(place, node, block).partition("\n")
        text += line + cut
        if not line and not cut:
            break
    return text.splitlines()


def _block(place: Place, node: Node, block: int) -> str:
    return "" if block < 0 else node.ask(Operations(place, node.rank, block)).text
