"""The pool of KV blocks: whole reservations or none, counted references, last freed first used."""

from __future__ import annotations

from collections.abc import Iterable

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

    def retain(self, blocks: Iterable[int]) -> None:
        """Add an owner to each of `blocks`; all of them must be held already."""
        wanted = tuple(blocks)
        for block in wanted:
            self._require_held(block)
        references, cached = self._references, self._cached
        for block in wanted:
            if cached[block] and references[block] == 1:
                self.reclaimable -= 1
            references[block] += 1

    def cache(self, blocks: Iterable[int]) -> None:
        """Make the cache an owner of each of `blocks`, which are held and not its own yet."""
        wanted = tuple(blocks)
        for block in wanted:
            self._require_held(block)
            if self._cached[block]:
                raise BlockOwnershipError(f"block pool: block {block} is cached already")
        for block in wanted:
            self._cached[block] = 1
            self._references[block] += 1
        self.cached += len(wanted)

    def uncache(self, blocks: Iterable[int]) -> int:
        """The cache lets go of each of `blocks`; how many that frees."""
        wanted = tuple(blocks)
        for block in wanted:
            if not self._cached[block]:
                raise BlockOwnershipError(f"block pool: block {block} is not cached")
        references = self._references
        free = len(self._free)
        for block in reversed(wanted):
            self._cached[block] = 0
            references[block] -= 1
            if references[block] == 0:
                self.reclaimable -= 1
                self._free.append(block)
        self.cached -= len(wanted)
        return len(self._free) - free

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one owner of each of `blocks`, which are distinct; the last one frees the block."""
        wanted = tuple(blocks)
        if len(set(wanted)) != len(wanted):
            raise BlockOwnershipError(f"block pool: a block stands twice in one release: {wanted}")
        references, cached = self._references, self._cached
        for block in wanted:
            self._require_held(block)
            if cached[block] and references[block] == 1:
                raise BlockOwnershipError(f"block pool: only the cache holds block {block}")
        # Backwards, so that the next reservation of this size gets the same blocks in order.
        for block in reversed(wanted):
            if references[block] == 1:
                self._free.append(block)
            elif cached[block] and references[block] == 2:
                self.reclaimable += 1
            references[block] -= 1

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

    def _require_held(self, block: int) -> None:
        if not 0 <= block < self.total or self._references[block] == 0:
            raise BlockOwnershipError(f"block pool: block {block} is held by nobody")
