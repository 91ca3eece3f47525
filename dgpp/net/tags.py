"""Which collective a rank is at, as one word that ranks compare: kind, wire and bytes."""

from __future__ import annotations

import enum

from dgpp.net.collective import Wire


class Kind(enum.IntEnum):
    """Of a collective."""

    ALL_REDUCE = 1
    ALL_GATHER = 2
    BARRIER = 3


_NAMES = {
    Kind.ALL_REDUCE: "an all-reduce",
    Kind.ALL_GATHER: "an all-gather",
    Kind.BARRIER: "a barrier",
}


def tag(kind: Kind, wire: Wire, size: int) -> int:
    """`size` in bytes, below 2**48."""
    return kind << 56 | wire << 48 | size


def describe(word: int) -> str:
    """What a tag says, for people."""
    kind, size = word >> 56 & 0xFF, word & 0xFFFFFFFFFFFF
    if kind not in set(Kind):
        return "nothing"
    name = _NAMES[Kind(kind)]
    if kind == Kind.BARRIER:
        return name
    wire = "bf16 " if word >> 48 & 0xFF == Wire.BF16 and kind == Kind.ALL_REDUCE else ""
    return f"{name} of {size} {wire}bytes"


def mismatch(generation: int, other: int, theirs: str, rank: int, mine: str) -> str:
    """What to say where ranks `other` and `rank` are at different collectives."""
    return f"collective: number {generation} is {theirs} on rank {other} and {mine} on rank {rank}"
