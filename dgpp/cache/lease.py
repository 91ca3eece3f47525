"""How the cache sees one live choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dgpp.cache.entry import Entry, Node


class Match(NamedTuple):
    """What of a prompt is cached: its first `tokens` tokens, up to `node` and `entry`'s tail.

    `blocks` hold the full units. `snapshot` and `tail_block` are copied for the new owner, −1 where
    there is nothing to copy. `decoded` of the tokens were written by decode.
    """

    node: Node
    entry: Entry | None
    tokens: int
    blocks: tuple[int, ...]
    snapshot: int
    tail_block: int
    decoded: int


@dataclass(slots=True, eq=False)
class Lease:
    """A live choice's place in the tree.

    `node` is the deepest one known to lie on its way (it may be gone meanwhile), `entry` the one
    that its next entry continues, `hits` and `settled` the standing that entry will have, `line`
    the conversation, −1 for a new one. `anchors` are what it made for other prompts and none has
    used yet. `kept` is the length of its longest entry. `rolling` is a snapshot of its own, −1 for
    none, that holds its state at `rolling_at`.
    """

    node: Node
    entry: Entry | None = None
    hits: int = 0
    settled: bool = False
    line: int = -1
    anchors: list[Entry] = field(default_factory=list)
    kept: int = 0
    rolling: int = -1
    rolling_at: int = 0
