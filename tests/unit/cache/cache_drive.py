"""Drives a prefix cache as the scheduler does, one request after another, and checks its books."""

from __future__ import annotations

import random

from dgpp.cache.cuts import cuts_of
from dgpp.cache.entry import Kind
from dgpp.cache.prefix_cache import PrefixCache
from dgpp.cache.shape import CacheShape
from dgpp.sched.blocks import BlockPool
from dgpp.sched.request import pack_ids


class Requests:
    """Serves whole requests through `cache`; `held` tells which ids each block holds."""

    def __init__(self, shape: CacheShape, blocks: int) -> None:
        self.shape = shape
        self.pool = BlockPool(blocks)
        self.cache = PrefixCache(self.pool, shape)
        self.block_ids: dict[int, tuple[int, ...]] = {}
        self.snapshot_ids: dict[int, tuple[int, ...]] = {}

    def serve(self, prompt: list[int], answer: list[int], boundaries: list[int] = ()) -> int:
        """Read `prompt`, write `answer`; how many tokens were cached. Checks what is attached."""
        cache, pool, shape = self.cache, self.pool, self.shape
        cache.begin_tick()
        ids = pack_ids(prompt)
        match = cache.match(ids, len(prompt))
        self._check(match, prompt)
        missed = cache.missed(ids, len(prompt), match)
        need = -(-(len(prompt) + len(answer)) // shape.block_tokens)
        pool.retain(match.blocks)
        lease = cache.attach(match, "r", missed)
        if not cache.reclaim(need - len(match.blocks)):
            raise AssertionError("a request that fits the pool found no room")
        fresh = pool.reserve(need - len(match.blocks))
        blocks = (*match.blocks, *fresh)
        if match.tail_block >= 0:
            self._copy(match.tail_block, blocks[len(match.blocks)])
        tokens = [*prompt, *answer]
        self._write(blocks, tokens[:-1], match.tokens)
        packed = pack_ids(tokens)
        for cut in cuts_of(shape, len(prompt), boundaries, match.tokens):
            cache.begin_tick()
            self._keep(
                cache.insert(
                    lease, "r", packed, blocks, cut.position, cut.kind, read=len(prompt), slot=0
                ),
                tokens[: cut.position],
            )
        end = shape.floor(len(tokens) - 1)
        if shape.close and end >= max(shape.min_tokens, 1):
            cache.begin_tick()
            if not shape.paged_only:
                self._keep(cache.roll(lease, "r", 0, end), tokens[:end])
            if shape.paged_only or lease.rolling >= 0:
                keep = cache.insert(
                    lease, "r", packed, blocks, end, Kind.CLOSE, read=len(prompt), slot=0
                )
                self._keep(keep, tokens[:end])
        cache.leave(lease)
        pool.release(blocks)
        self.check()
        return match.tokens

    def check(self) -> None:
        """The pool's books balance, and nothing but the cache holds a block."""
        self.pool.check()
        cached = [b for node in self.cache.tree.all_nodes() for b in node.blocks]
        cached += [e.tail_block for e in self.cache.entries() if e.tail_block >= 0]
        assert len(cached) == len(set(cached)) == self.pool.cached == self.pool.reclaimable
        assert self.pool.in_use == self.pool.cached
        assert len(self.cache) <= self.shape.snapshots
        for node in self.cache.tree.all_nodes():
            assert node.children or node.entries

    def _check(self, match, prompt) -> None:
        assert match.tokens < len(prompt)
        assert match.tokens % self.shape.align == 0
        size = self.shape.block_tokens
        for index, block in enumerate(match.blocks):
            assert self.block_ids[block] == tuple(prompt[: (index + 1) * size])
        if match.tail_block >= 0:
            assert self.block_ids[match.tail_block][: match.tokens] == tuple(prompt[: match.tokens])
        if match.snapshot >= 0:
            assert self.snapshot_ids[match.snapshot] == tuple(prompt[: match.tokens])

    def _write(self, blocks, tokens, start) -> None:
        """A block's contents stand for all ids up to its last row."""
        size = self.shape.block_tokens
        for index in range(start // size, -(-len(tokens) // size)):
            self.block_ids[blocks[index]] = tuple(tokens[: (index + 1) * size])

    def _copy(self, source, target) -> None:
        self.block_ids[target] = self.block_ids[source]

    def _keep(self, keep, tokens) -> None:
        if keep is None:
            return
        if keep.snapshot >= 0:
            self.snapshot_ids[keep.snapshot] = tuple(tokens)
        if keep.copy >= 0:
            self._copy(keep.block, keep.copy)


class Conversation:
    """Grows by a user's text and an answer each turn, as a chat's prompt does."""

    def __init__(self, number: int, system: list[int], size: int) -> None:
        self.rng = random.Random(number)
        self.tokens = list(system)
        self.boundaries = [len(system)] if system else []
        self.size = size

    def turn(self) -> tuple[list[int], list[int], list[int]]:
        """(prompt, answer, boundaries) of the next turn."""
        if self.tokens:
            self.boundaries.append(len(self.tokens))
        self.tokens += [1, *self._text()]
        self.boundaries.append(len(self.tokens))
        self.tokens += [2]
        prompt = list(self.tokens)
        answer = self._text()
        self.tokens += answer
        return prompt, answer, [b for b in self.boundaries if 0 < b < len(prompt)]

    def _text(self) -> list[int]:
        return [self.rng.randrange(3, 1000) for _ in range(self.size)]


TURNS, SIZE = 3, 64


def share_hit(shape: CacheShape, blocks: int, conversations: int) -> float:
    """Conversations take turns; the share of second and third turns that find their last one."""
    requests = Requests(shape, blocks)
    talks = [Conversation(number, [], SIZE) for number in range(conversations)]
    hits = 0
    for turn in range(TURNS):
        for talk in talks:
            prompt, answer, boundaries = talk.turn()
            cached = requests.serve(prompt, answer, boundaries)
            hits += turn > 0 and cached > len(prompt) - 2 * SIZE
    return hits / ((TURNS - 1) * conversations)
