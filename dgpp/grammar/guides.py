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

    def open(self, slot: int, grammar: str) -> None:
        """`slot` follows `grammar` from its beginning. Raises GrammarError."""
        self._held[slot] = self._grammars.compile(grammar)

    def close(self, slot: int) -> None:
        self._held.pop(slot, None)

    def masks(self, slots: Sequence[int]) -> npt.NDArray[np.uint32]:
        """uint32 [len(slots), ⌈vocab / 32⌉]: what may follow in each of `slots`."""
        found = np.zeros((len(slots), self._words), np.uint32)
        for row, slot in zip(found, slots, strict=True):
            self._held[slot].mask(row)
        return found

    def advance(self, slot: int, tokens: Sequence[int]) -> str:
        """Take in the committed tokens of a slot; nothing where it follows no grammar. Why its
        grammar cannot go on, "" where it can."""
        matcher = self._held.get(slot)
        return "" if matcher is None else matcher.consume(tokens)
