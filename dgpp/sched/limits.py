"""The sizes of an engine that whoever plans for it, feeds it or reserves its memory agrees on."""

from __future__ import annotations

import msgspec


class EngineLimits(msgspec.Struct, frozen=True):
    """The sizes that scheduler, sampler and front end agree on. All from configuration alone.

    `chunk_align` rows make one prefill tile: every chunk but a prompt's last is a multiple of it,
    and it and `block_tokens` are multiples one of the other. `chunk_limit` bounds one step's
    prefill rows.
    `max_drafts` bounds the tokens of a step beyond the first, per slot. `depth` is how many plans
    the engine takes before it has answered one: with 1, it feeds its own picks (`FED` rows).
    `refeeds` says that a position may be fed again: all that is kept of a request is kept by
    position, where state that every token moves on (recurrent, convolution) is not.
    `snapshots` bounds the entries of the prefix cache, 0 for none. `snapshot_bytes` is what a slot
    owns beside its blocks, and so the size of a snapshot. What drafts keep of a token depends on
    `lookahead` tokens after it. The last `reread` tokens of a prompt are always read, whatever is
    cached: some layers read these alone of it. The cache's disk has `cold_pages` of a block each,
    0 for none, of `cold_page_bytes`; a snapshot takes `cold_blob_pages`.
    """

    slots: int
    vocab_size: int
    position_ceiling: int
    block_tokens: int
    blocks: int
    chunk_align: int
    chunk_limit: int
    candidates: int
    max_drafts: int = 0
    depth: int = 0
    refeeds: bool = True
    snapshots: int = 0
    snapshot_bytes: int = 0
    lookahead: int = 0
    reread: int = 1
    cold_pages: int = 0
    cold_blob_pages: int = 0
    cold_page_bytes: int = 0

    @property
    def paged_only(self) -> bool:
        """Whether blocks hold all state, so that whatever is cached of a prefix can be shared."""
        return not self.snapshot_bytes
