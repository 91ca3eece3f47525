"""Where a prompt is worth an entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dgpp.cache.entry import Kind
from dgpp.cache.shape import CacheShape

LONG_PROMPT_CHUNKS = 4
"""From so many chunks on a prompt gets a BODY entry too, one to two chunks before its end."""


class Cut(NamedTuple):
    """Reading stops at `position` for long enough to keep what was read."""

    position: int
    kind: Kind


def cuts_of(shape: CacheShape, tokens: int, boundaries: Sequence[int], attached: int) -> list[Cut]:
    """The cuts of a prompt of `tokens` tokens beyond the `attached` ones, ascending.

    `boundaries` are the positions where a role's text begins, ascending. What is read in any case
    stays behind the last cut, at least one token. Where blocks are all the state there is,
    every cut on the way can be shared and one entry at the end is enough. Else a cut depends on
    what lies before it alone, so that prompts that begin alike cut alike.
    """
    last = shape.most(tokens)
    least = max(shape.min_tokens, attached + 1)
    if shape.paged_only:
        return [Cut(last, Kind.TAIL)] if last >= least else []
    wanted = _snapshots(shape, tokens, boundaries, max(shape.min_tokens, 1))
    return [
        Cut(position, kind)
        for position, kind in sorted(wanted.items())
        if least <= position <= last
    ]


def _snapshots(
    shape: CacheShape, tokens: int, boundaries: Sequence[int], least: int
) -> dict[int, Kind]:
    wanted: dict[int, Kind] = {}
    inner = [shape.floor(b) for b in boundaries if 0 < b < tokens]
    chunks = tokens // shape.chunk
    if chunks >= LONG_PROMPT_CHUNKS:
        wanted[shape.floor((chunks - 1) * shape.chunk)] = Kind.BODY
    most = shape.most(tokens)
    wanted[min(inner[-1], most) if inner else most] = Kind.TAIL
    head = next((at for at in inner if at >= least), None)
    if shape.heads and head is not None:
        wanted[head] = Kind.HEAD
    return wanted
