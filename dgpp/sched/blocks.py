"""The pool of KV blocks: whole reservations or none, counted references, last freed first used."""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.errors import DgppError


class BlocksExhaustedError(DgppError):
    """A reservation asked for more blocks than are free; nothing was taken."""


class BlockOwnershipError(DgppError):
    """A block was released or retained that nobody holds, or the pool's books do not balance."""


class BlockPool:
    """Blocks 0 … `total`−1, each free or held by one or more owners.

    The free list is last-in first-out, so that a block still warm in the caches is reused first
    and every rank hands out the same blocks in the same order. One of the owners may be the prefix
    cache; what it alone owns is `reclaimable`.
    """

    __slots__ = ("_cached", "_free", "_references", "cached", "reclaimable", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._cached = bytearray(total)
        self.cached = 0
        """Blocks of which the cache is an owner."""
        self.reclaimable = 0
        """Blocks of which it is the only one."""

    @property
    def free(self) -> int:
        """Blocks that a reservation could take now."""
        return len(self._free)

    @property
    def in_use(self) -> int:
        """Blocks with at least one owner."""
        return self.total - len(self._free)

    def references(self, block: int) -> int:
        """How many owners `block` has."""
        return self._references[block]

    def reserve(self, count: int) -> tuple[int, ...]:
        """Take `count` blocks, one owner each; BlocksExhaustedError takes none."""
        free = self._free
        if count > len(free):
            raise BlocksExhaustedError(
                f"block pool: {count} blocks asked for, {len(free)} of {self.total} free"
            )
        if count <= 0:
            return ()
        taken = tuple(free[: -count - 1 : -1])
        del free[-count:]
        references = self._references
        for block in taken:
            references[block] = 1
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Add an owner to each of `blocks`; all of them must be held already."""
        self._require_held(blocks)
        references, cached = self._references, self._cached
        for block in blocks:
            if references[block] == 1 and cached[block]:
                self.reclaimable -= 1
            references[block] += 1

    def cache(self, blocks: Sequence[int]) -> None:
        """Make the cache an owner of each of `blocks`, which are held and not its own yet."""
        self._require_held(blocks)
        references, cached = self._references, self._cached
        for block in blocks:
            if cached[block]:
                raise BlockOwnershipError(f"block pool: block {block} is cached already")
        for block in blocks:
            cached[block] = 1
            references[block] += 1
        self.cached += len(blocks)

    def uncache(self, blocks: Sequence[int]) -> None:
        """The cache lets go of each of `blocks`."""
        references, cached, free = self._references, self._cached, self._free
        for block in blocks:
            if not cached[block]:
                raise BlockOwnershipError(f"block pool: block {block} is not cached")
        before = len(free)
        for block in reversed(blocks):
            cached[block] = 0
            references[block] -= 1
            if not references[block]:
                free.append(block)
        self.reclaimable -= len(free) - before
        self.cached -= len(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one owner of each of `blocks`, which are distinct; the last one frees the block."""
        if len(set(blocks)) != len(blocks):
            raise BlockOwnershipError(f"block pool: a block stands twice in one release: {blocks}")
        self._require_held(blocks)
        references, cached, free = self._references, self._cached, self._free
        for block in blocks:
            if references[block] == 1 and cached[block]:
                raise BlockOwnershipError(f"block pool: only the cache holds block {block}")
        # Backwards, so that the next reservation of this size gets the same blocks in order.
        for block in reversed(blocks):
            left = references[block] = references[block] - 1
            if not left:
                free.append(block)
            elif left == 1 and cached[block]:
                self.reclaimable += 1

    def check(self) -> None:
        """Raise BlockOwnershipError unless every block is either free once or held."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise BlockOwnershipError("block pool: a block stands twice in the free list")
        held = sum(1 for b, r in enumerate(self._references) if self._cached[b] and r == 1)
        if (held, sum(self._cached)) != (self.reclaimable, self.cached):
            raise BlockOwnershipError(
                f"block pool: {self.reclaimable} of {self.cached} cached blocks count as "
                f"reclaimable, {held} of {sum(self._cached)} are"
            )
        for block, references in enumerate(self._references):
            if (references == 0) != (block in free) or references < 0:
                raise BlockOwnershipError(
                    f"block pool: block {block} has {references} owners and is "
                    f"{'free' if block in free else 'not free'}"
                )

    def _require_held(self, blocks: Sequence[int]) -> None:
        references = self._references
        try:
            if all(map(references.__getitem__, blocks)) and min(blocks, default=0) >= 0:
                return
        except IndexError:
            pass
        held = range(self.total)
        block = next(block for block in blocks if block not in held or not references[block])
        raise BlockOwnershipError(f"block pool: block {block} is held by nobody")
