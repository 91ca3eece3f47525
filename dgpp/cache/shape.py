"""What the prefix cache is told about the engine and by the deployment."""

from __future__ import annotations

import msgspec


class CacheShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens and counts.

    `align` divides every cut; it and `block_tokens` are multiples one of the other. `chunk` is
    what one step reads at most. `snapshots` bounds the entries. `paged_only`: blocks hold all
    state, so that an entry serves every cut on its way; else only its own, through its snapshot.
    `lookahead` more ids must match behind a cut where drafts depend on them. The
    last `reread` tokens of a prompt are not looked up. `min_tokens` is the
    shortest entry. `heads` and `close` say whether such entries are made.
    """

    align: int
    block_tokens: int
    chunk: int
    snapshots: int
    paged_only: bool = True
    lookahead: int = 0
    reread: int = 1
    min_tokens: int = 1024
    heads: bool = True
    close: bool = True

    @property
    def unit(self) -> int:
        """Tokens of a node of the tree."""
        return max(self.align, self.block_tokens)

    @property
    def unit_blocks(self) -> int:
        return self.unit // self.block_tokens

    def most(self, tokens: int) -> int:
        """The last cut that a prompt of `tokens` can be continued from."""
        return self.floor(max(0, tokens - self.reread))

    def floor(self, tokens: int) -> int:
        """The last cut at or before `tokens`."""
        return tokens // self.align * self.align
