"""What the prefix cache remembers: nodes of shared blocks, and entries that keep them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """Where in a request's life an entry was made.

    HEAD  the end of a prompt's first part (a system prompt), which many prompts begin with
    BODY  well before the end of a long prompt, for another question about the same text
    TAIL  the last cut of a prompt
    CLOSE the last cut of a conversation, rows that decode wrote included
    """

    HEAD = "head"
    BODY = "body"
    TAIL = "snapshot"
    CLOSE = "close"

    @property
    def anchor(self) -> bool:
        """Whether it is made for other prompts, so that a longer entry does not replace it."""
        return self in (Kind.HEAD, Kind.BODY)


class Node:
    """One unit of a prefix: its token ids and the blocks that hold their state.

    `key` are the packed ids of the unit, followed by those that its drafts looked ahead at.
    `children` by their keys. A node lives as long as it has children or entries; `gone` then.
    Of the whole prefix, `decoded` tokens lie in units some of whose rows decode wrote, and `mark`
    is a checksum.
    """

    __slots__ = (
        "blocks",
        "children",
        "decoded",
        "depth",
        "entries",
        "gone",
        "key",
        "mark",
        "parent",
    )

    def __init__(
        self,
        parent: Node | None,
        key: bytes,
        blocks: tuple[int, ...],
        mark: int = 0,
        decoded: int = 0,
    ) -> None:
        self.parent = parent
        self.key = key
        self.blocks = blocks
        self.mark = mark
        self.decoded = decoded
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[bytes, Node] = {}
        self.entries: dict[bytes, Entry] = {}
        self.gone = False


@dataclass(slots=True, eq=False)
class Entry:
    """A prefix worth keeping: the first `position` tokens on the way to `node`, and `tail`.

    `tail` are the packed ids beyond the node's own where `position` cuts a block (with those that
    drafts looked ahead at), `tail_block` the private copy of that block, else −1. `snapshot`
    numbers the copy of rings and fixed state; families without such state only count with it.
    `asked` is the length of the prompt that it was made for, `line` numbers the conversation.
    `weight` is what the entry takes of what is scarce: units of blocks, or one snapshot. `used` is
    the age of its last use, `tick` the last tick that lent it; while it is `busy` its snapshot is
    being copied. `newer` is the entry that has taken
    its place, `older` those whose place it took.
    """

    number: int
    node: Node
    position: int
    kind: Kind
    snapshot: int
    weight: int
    asked: int = 0
    tail: bytes = b""
    tail_block: int = -1
    line: int = -1
    used: int = 0
    tick: int = -1
    busy: int = 0
    newer: Entry | None = None
    older: list[Entry] = field(default_factory=list)
