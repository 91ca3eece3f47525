"""An engine on paper: its state is the tokens themselves, so that a row can check what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dgpp.sched.limits import EngineLimits
from dgpp.sched.plan import Plan


class PaperEngine:
    """Runs plans in order. A block's row holds the token fed there, and what a slot owns is the
    tuple of all tokens it was fed.

    Every row checks that the rows before it, in its slot's blocks, hold its own tokens.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.blocks: list[list[int | None]] = [
            [None] * limits.block_tokens for _ in range(limits.blocks)
        ]
        self.tables: dict[int, list[int]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.owned: dict[int, tuple[int, ...]] = {}
        self.snapshots: dict[int, tuple[int, ...]] = {}
        self.prompts: dict[int, list[int]] = {}

    def run(
        self,
        plan: Plan,
        fed: Mapping[int, int],
        drafts: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        """`fed` is the token of each slot whose decode row feeds what the engine picked; `drafts`
        are those that a slot's row feeds behind its own token."""
        for keep in plan.keeps:
            if keep.snapshot >= 0:
                assert not self.limits.paged_only
                self.snapshots[keep.snapshot] = self.owned[keep.slot]
            if keep.copy >= 0:
                self.blocks[keep.copy] = list(self.blocks[keep.block])
        for slot in plan.closes:
            del self.tables[slot], self.tokens[slot], self.owned[slot], self.prompts[slot]
        for opened in plan.opens:
            self._open(opened)
        for grown in plan.grows:
            assert len(self.tables[grown.slot]) == grown.start
            self.tables[grown.slot].extend(grown.blocks)
        for chunk in plan.prefills:
            prompt = self.prompts[chunk.slot]
            for position in range(chunk.start, chunk.start + chunk.count):
                self._feed(chunk.slot, position, prompt[position])
            assert chunk.last == (chunk.start + chunk.count == len(prompt))
        for row in plan.decodes:
            token = fed[row.slot] if row.token < 0 else row.token
            for place, each in enumerate((token, *drafts.get(row.slot, ()))):
                self._feed(row.slot, row.position + place, each)

    def _open(self, opened) -> None:
        slot, prompt = opened.slot, opened.request.prompt_ids.tolist()
        assert slot not in self.tables
        self.tables[slot] = list(opened.blocks)
        self.prompts[slot] = prompt
        self.tokens[slot] = prompt[: opened.cached_tokens]
        self.owned[slot] = ()
        if opened.restore >= 0:
            self.owned[slot] = self.snapshots[opened.restore]
        if opened.tail >= 0:
            place = opened.cached_tokens // self.limits.block_tokens
            self.blocks[opened.blocks[place]] = list(self.blocks[opened.tail])
        if not self.limits.paged_only:
            assert self.owned[slot] == tuple(self.tokens[slot])
        assert opened.cached_tokens < len(prompt)
        self._check(slot, opened.cached_tokens)

    def _feed(self, slot: int, position: int, token: int) -> None:
        tokens = self.tokens[slot]
        assert position <= len(tokens)
        if position < len(tokens):
            # A row that was void is fed again.
            del tokens[position:]
            self.owned[slot] = self.owned[slot][:position]
        self._check(slot, position)
        tokens.append(token)
        self.owned[slot] += (token,)
        size = self.limits.block_tokens
        self.blocks[self.tables[slot][position // size]][position % size] = token

    def _check(self, slot: int, count: int) -> None:
        size, table = self.limits.block_tokens, self.tables[slot]
        held = [self.blocks[table[p // size]][p % size] for p in range(count)]
        assert held == self.tokens[slot][:count]
