"""Blocks and cached prefixes as choices use them: taken, shared, grown, kept and left behind."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dgpp.cache.cuts import Cut, cuts_of
from dgpp.cache.entry import Kind
from dgpp.cache.explain import explain
from dgpp.cache.lease import Lease, Match
from dgpp.cache.prefix_cache import PrefixCache
from dgpp.cache.shape import CacheShape
from dgpp.cache.tier import Tier, TierShape
from dgpp.cache.tree import ID_BYTES
from dgpp.sched.blocks import BlockPool
from dgpp.sched.choice import Choice
from dgpp.sched.limits import EngineLimits
from dgpp.sched.operations import Sink
from dgpp.sched.plan import Grow, Keep
from dgpp.sched.request import pack_list


class CachePolicy(msgspec.Struct, frozen=True):
    """What the deployment says about the prefix cache: `engine.prefix_min_tokens`,
    `prefix_head_snapshots`, `prefix_close`; `nvme_cache.min_tokens` (0: one chunk)."""

    min_tokens: int = 1024
    heads: bool = True
    close: bool = True
    cold_min_tokens: int = 0


class Memory:
    """The pool of blocks and the prefix cache over it (None where the engine keeps no snapshots).

    `keeps` and `grows` are what the next plan must tell the engine; `tier` (None without a disk)
    has more of that.
    """

    def __init__(self, limits: EngineLimits, policy: CachePolicy, sink: Sink | None = None) -> None:
        self.pool = BlockPool(limits.blocks)
        self.keeps: list[Keep] = []
        self.grows: list[Grow] = []
        self.cache: PrefixCache | None = None
        self.tier: Tier | None = None
        self._block_tokens = limits.block_tokens
        if limits.snapshots:
            shape = CacheShape(
                align=limits.chunk_align,
                block_tokens=limits.block_tokens,
                chunk=limits.chunk_limit,
                snapshots=limits.snapshots,
                paged_only=limits.paged_only,
                lookahead=limits.lookahead,
                reread=limits.reread,
                min_tokens=policy.min_tokens,
                heads=policy.heads,
                close=policy.close,
            )
            self.cache = PrefixCache(self.pool, shape, sink)
            if limits.cold_pages:
                self.tier = Tier(_tier_shape(limits, policy), self.cache, self.pool)

    @property
    def available(self) -> int:
        """Blocks that choices could be given, cached ones included."""
        return self.pool.free + self.pool.reclaimable

    def begin_tick(self) -> None:
        if self.cache is not None:
            self.cache.begin_tick()

    def ease(self) -> None:
        """A tick that admits nobody makes room for the next one that does."""
        if self.cache is not None:
            self.cache.ease()

    def find(self, choice: Choice) -> Match | None:
        """What of the choice's prompt is cached; None where it must not be asked."""
        if self.cache is None or not choice.submit.uses_cache:
            return None
        return self.cache.match(choice.submit.prompt, choice.prompt_tokens)

    def fits_by_sharing(self, choice: Choice) -> bool:
        """Whether there is room for it because it shares blocks that are held anyway."""
        most = choice.prompt_tokens // self._block_tokens
        match = self.find(choice) if choice.need - most <= self.available else None
        if match is None:
            return False
        held = sum(1 for block in match.blocks if self.pool.references(block) > 1)
        return choice.need - held <= self.available

    def seat(self, choice: Choice, match: Match | None) -> bool:
        """Give the choice `choice.need` blocks, the first of them those of `match`. False, with
        nothing taken, where that is not possible within this tick."""
        shared = match.blocks if match is not None else ()
        pool = self.pool
        if self.cache is not None and match is not None:
            self.cache.hold(match)
        pool.retain(shared)
        if not self._reclaim(choice.need - len(shared)):
            pool.release(shared)
            return False
        choice.blocks = (*shared, *pool.reserve(choice.need - len(shared)))
        if match is not None:
            self._attach(choice, match)
        return True

    def recall(self, choice: Choice) -> bool:
        """Have what the disk holds of the choice's prompt read back; True where it is to wait."""
        if self.tier is None or choice.recalled:
            return False
        match = self.find(choice)
        if match is None:
            return False
        ids = choice.submit.prompt
        cold = self.tier.ahead(ids, choice.prompt_tokens, match.tokens)
        if cold is None:
            return False
        if not self.tier.reading:
            choice.recalled = True
            return self.tier.restore(cold, ids)
        return True

    def share(self, choice: Choice) -> None:
        """Look again for a seated choice that has read nothing: what it finds replaces its own."""
        match = self.find(choice)
        assert match is not None
        self.pool.retain(match.blocks)
        self._attach(choice, match)
        own = choice.blocks[: len(match.blocks)]
        choice.blocks = (*match.blocks, *choice.blocks[len(own) :])
        self.pool.release(own)

    def _attach(self, choice: Choice, match: Match) -> None:
        cache = self.cache
        assert cache is not None
        submit = choice.submit
        evicted = cache.missed(submit.prompt, choice.prompt_tokens, match)
        choice.missed = explain(cache, submit.prompt, choice.prompt_tokens, match, evicted)
        choice.lease = cache.attach(match, submit.id, evicted)
        choice.cached, choice.decoded, choice.read = match.tokens, match.decoded, match.tokens
        choice.restore, choice.tail = match.snapshot, match.tail_block
        choice.cuts = cuts_of(
            cache.shape, choice.prompt_tokens, submit.boundary_positions, match.tokens
        )

    def grow(self, choice: Choice, blocks: int) -> bool:
        """Give the choice `blocks` more; False, with nothing taken, where they are not there."""
        if not self._reclaim(blocks):
            return False
        taken = self.pool.reserve(blocks)
        self.grows.append(Grow(choice.slot, len(choice.blocks), taken))
        choice.blocks += taken
        return True

    def _reclaim(self, blocks: int) -> bool:
        if self.pool.free >= blocks:
            return True
        return self.cache is not None and self.cache.reclaim(blocks)

    def spill(self) -> None:
        """Begin to write to disk what waits for it."""
        if self.tier is not None:
            self.tier.begin()

    def fold(self) -> None:
        """Fold the cache's decisions since the last call into its digest."""
        if self.cache is not None:
            self.cache.decisions.fold()

    # What is left behind ------------------------------------------------------------------------

    def keep_cuts(self, reading: Iterable[Choice]) -> None:
        """Enter the cuts that prompts have been read up to."""
        for choice in reading:
            while choice.cuts and choice.read >= choice.cuts[0].position:
                cut = choice.cuts.pop(0)
                self._insert(choice, choice.submit.prompt, cut)

    def roll(self, decoding: Iterable[Choice]) -> None:
        """Snapshots of rings and fixed state at the cuts that decode passes."""
        cache = self.cache
        if cache is None or cache.shape.paged_only or not cache.shape.close:
            return
        shape = cache.shape
        for choice in decoding:
            at = choice.prompt_tokens + choice.produced + choice.ahead - 1
            lease = choice.lease
            if lease is None or at % shape.align or at < max(shape.min_tokens, 1):
                continue
            if at > max(lease.rolling_at, choice.prompt_tokens - 1):
                keep = cache.roll(lease, choice.submit.id, choice.slot, at)
                if keep is not None:
                    self.keeps.append(keep)

    def unroll(self, choice: Choice) -> None:
        """Rows of the choice that were out are void: a snapshot after them is none of its own."""
        lease = choice.lease
        if lease is not None and lease.rolling_at > choice.fed:
            lease.rolling_at = 0

    def leave(self, choice: Choice) -> None:
        """A seated choice ends: what it computed is kept where that is of use, all else is free."""
        cache, lease = self.cache, choice.lease
        if cache is not None and lease is not None:
            self.keep_cuts((choice,))
            self._keep_end(choice, cache.shape, lease)
            cache.leave(lease)
        # It may have been given more in this very tick, before somebody else needed it.
        self.grows = [grown for grown in self.grows if grown.slot != choice.slot]
        self.pool.release(choice.blocks)

    def _keep_end(self, choice: Choice, shape: CacheShape, lease: Lease) -> None:
        if choice.is_read and choice.produced and shape.close:
            ids = choice.submit.prompt + pack_list(choice.answer)
            end = min(choice.fed, len(ids) // ID_BYTES - shape.lookahead)
            # With no row out, the slot still holds the state after the last row.
            whole = shape.paged_only or (end == shape.floor(end) == choice.fed and not choice.ahead)
            at = shape.floor(end) if whole else lease.rolling_at
            if lease.kept < at <= end:
                self._insert(choice, ids, Cut(at, Kind.CLOSE))
        elif shape.paged_only and not choice.is_read and shape.floor(choice.read) > lease.kept:
            # Cancelled halfway: who asks again need not wait for all of it.
            self._insert(choice, choice.submit.prompt, Cut(shape.floor(choice.read), Kind.TAIL))

    def _insert(self, choice: Choice, ids: bytes, cut: Cut) -> None:
        cache, lease = self.cache, choice.lease
        assert cache is not None
        assert lease is not None
        if cut.position < max(cache.shape.min_tokens, 1):
            return
        before = cache.newest
        keep = cache.insert(
            lease,
            choice.submit.id,
            ids,
            choice.blocks,
            cut.position,
            cut.kind,
            read=choice.prompt_tokens,
            slot=choice.slot,
        )
        if keep is not None:
            self.keeps.append(keep)
        if self.tier is not None and cache.newest is not None and cache.newest is not before:
            self.tier.wants(cache.newest, ids)

    # Books --------------------------------------------------------------------------------------

    def check(self, seated: Iterable[Choice]) -> None:
        """Raise a named error unless the blocks in use are those of choices and of the cache."""
        self.pool.check()
        live = {block for choice in seated for block in choice.blocks}
        if self.tier is not None:
            live.update(self.tier.held())
            self.tier.index.check()
        cached: list[int] = []
        if self.cache is not None:
            cached = [block for node in self.cache.tree.all_nodes() for block in node.blocks]
            cached += [e.tail_block for e in self.cache.entries() if e.tail_block >= 0]
        assert len(cached) == len(set(cached)) == self.pool.cached
        assert len(live | set(cached)) == self.pool.in_use


def _tier_shape(limits: EngineLimits, policy: CachePolicy) -> TierShape:
    return TierShape(
        pages=limits.cold_pages,
        blob_pages=limits.cold_blob_pages,
        min_tokens=policy.cold_min_tokens or limits.chunk_limit,
        lead=max(limits.chunk_align, limits.block_tokens),
    )
