"""What one step does: the scheduler's order to the engine and the sampler of its rank."""

from __future__ import annotations

import msgspec

from dgpp.cache.cold_ops import Restore, Spill
from dgpp.sched.request import Submit


class Open(msgspec.Struct, frozen=True, array_like=True):
    """`slot` now belongs to `request`; `blocks` are the KV blocks reserved for it, in order.

    Its first `cached_tokens` tokens are read already (`decoded` of them written by decode): the
    blocks hold their state, but for what `restore` (a snapshot) and `tail` (a block, to be copied
    to the one after the last full one) hold, −1 for none. `arrival` is the choice's number in the
    journal, counted from the start of the world.
    """

    slot: int
    request: Submit
    blocks: tuple[int, ...]
    cached_tokens: int = 0
    arrival: int = 0
    decoded: int = 0
    restore: int = -1
    tail: int = -1


class Grow(msgspec.Struct, frozen=True, array_like=True):
    """`slot` gets `blocks` more, the first of them the slot's number `start`."""

    slot: int
    start: int
    blocks: tuple[int, ...]


class Keep(msgspec.Struct, frozen=True, array_like=True):
    """Copy what `slot` owns beside its blocks to `snapshot`, and block `block` to block `copy`.

    −1 where there is nothing to copy. The state is that after all steps before.
    """

    slot: int
    snapshot: int
    block: int = -1
    copy: int = -1


class PrefillChunk(msgspec.Struct, frozen=True, array_like=True):
    """Read prompt positions [`start`, `start + count`) of `slot`; `last` ends the prompt.

    The last chunk yields one sampled row: the request's first token.
    """

    slot: int
    start: int
    count: int
    last: bool


FED = -1
"""In a row's token: what the engine picked itself for the slot's row of the step before."""


class DecodeRow(msgspec.Struct, frozen=True, array_like=True):
    """Feed `token` (or `FED`) at `position` of `slot` and sample what follows."""

    slot: int
    position: int
    token: int


class Plan(msgspec.Struct, frozen=True):
    """One step. Order inside the engine: keeps, closes, opens, grows, prefills, decode rows. What
    the disk tier does (`spills`, `restores`) begins after that and ends by a record.

    `sheds` are those of `closes` whose choices had to give way: their answers end here. Sampled
    rows are numbered as they stand: first the `last` chunks of `prefills` in order,
    then `decodes` in order.
    """

    step: int
    closes: tuple[int, ...] = ()
    opens: tuple[Open, ...] = ()
    prefills: tuple[PrefillChunk, ...] = ()
    decodes: tuple[DecodeRow, ...] = ()
    keeps: tuple[Keep, ...] = ()
    grows: tuple[Grow, ...] = ()
    sheds: tuple[int, ...] = ()
    spills: tuple[Spill, ...] = ()
    restores: tuple[Restore, ...] = ()

    def sampled_slots(self) -> list[int]:
        """The slot of every sampled row, in row order."""
        return [c.slot for c in self.prefills if c.last] + [d.slot for d in self.decodes]

    def sampled_ahead(self) -> list[bool]:
        """Of every sampled row, in row order: whether it feeds a token not known to the plan."""
        prompts = [False for c in self.prefills if c.last]
        return prompts + [d.token == FED for d in self.decodes]
