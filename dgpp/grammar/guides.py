"""The grammars of the choices that hold the slots: masks before a step, tokens after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dgpp.grammar.matcher import Grammars, Matcher


class Guides:
    """One matcher for each slot whose choice is held to a grammar."""

    def __init__(self, grammars: Grammars, vocab_size: int) -> None:
        self._grammars = grammars
        self._words = -(-vocab_size // 32)
        self._held: dict[int, Matcher] = {}
        self.stuck: dict[int, str] = {}
        """Slots whose answer may neither go on nor end, as their last mask said, and why."""

    def open(self, slot: int, grammar: str) -> None:
        """`slot` follows `grammar` from its beginning. Raises GrammarError."""
        self._held[slot] = self._grammars.compile(grammar)

    def close(self, slot: int) -> None:
        self._held.pop(slot, None)
        self.stuck.pop(slot, None)

    def masks(self, slots: Sequence[int]) -> npt.NDArray[np.uint32]:
        """uint32 [len(slots), ⌈vocab / 32⌉]: what may follow in each of `slots`."""
        found = np.zeros((len(slots), self._words), np.uint32)
        for row, slot in zip(found, slots, strict=True):
            matcher = self._held[slot]
            matcher.mask(row)
            if not row.any() and (fault := matcher.fault):
                self.stuck[slot] = fault
        return found

    def advance(self, slot: int, tokens: Sequence[int]) -> None:
        """Take in the committed tokens of a slot; nothing where it follows no grammar."""
        if (matcher := self._held.get(slot)) is not None:
            matcher.consume(tokens)
