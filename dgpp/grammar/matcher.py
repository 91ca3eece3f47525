"""Grammars at work: which tokens may come next, for one choice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from dgpp.grammar.errors import GrammarBrokenError, GrammarError

LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=500_000,
    step_max_items=100_000,
    max_lexer_states=100_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""What one grammar may cost: about 40 ms to compile, 200 MB of lexer states at the very most. Not
bounded by these are divisors of numbers (`dgpp.serve.divisors`)."""
NOTHING = "no text fits it"
REMEMBERED = 64
"""Compiled grammars kept for requests to come."""


class Matcher:
    """The state of one choice. After `consume`, `mask` says what may follow."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._words = -(-vocab_size // 32)
        self._bytes = 4 * self._words

    def mask(self, out: npt.NDArray[np.uint32]) -> None:
        """Write the ids that may follow into the bits of `out` [⌈vocab / 32⌉].

        Where the grammar cannot go on within its limits nothing may follow: the answer is cut off.
        """
        found = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        out[: self._words] = 0 if self._matcher.is_error() else found[: self._words]

    def consume(self, tokens: Sequence[int]) -> None:
        """Take in committed tokens. What a request asked for is no reason to end anything but its
        own answer: where the grammar cannot go on, the next mask says so."""
        if not self._matcher.is_stopped() and not self._matcher.is_error():
            self._matcher.consume_tokens(list(tokens))

    @property
    def fault(self) -> str:
        """Why the grammar cannot go on, "" where it can or is complete."""
        if self._matcher.is_error():
            return _said(self._matcher)[:200]
        return "" if self._matcher.is_accepting() else NOTHING

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens consumed."""
        if count and not self._matcher.rollback(count):
            raise GrammarBrokenError(f"grammar: {self._matcher.get_error()[:200]}")

    @property
    def is_accepting(self) -> bool:
        """The answer may end here."""
        return bool(self._matcher.is_accepting())


def _said(matcher: LLMatcher) -> str:
    """What is wrong with a grammar, in words."""
    text = str(matcher.get_error().strip())
    return NOTHING if text.startswith("NoExtension") else text


def _require_beginning(matcher: LLMatcher) -> None:
    """A schema that refers to itself without end compiles, and nothing fits it."""
    allowed = np.frombuffer(matcher.compute_bitmask(), np.uint32)
    if matcher.is_error():
        raise GrammarError(_said(matcher))
    if not allowed.any() and not matcher.is_accepting():
        raise GrammarError(NOTHING)


class Grammars:
    """Compiles grammars over one vocabulary and remembers the last ones. Safe in threads."""

    def __init__(self, vocabulary: LLTokenizer, remembered: int = REMEMBERED) -> None:
        self._vocabulary = vocabulary
        self._remembered = remembered
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def compile(self, grammar: str) -> Matcher:
        """A fresh matcher. Raises GrammarError saying what is wrong; lets other threads run."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
        if found is None:
            found = LLMatcher(self._vocabulary, grammar, log_level=0, limits=LIMITS)
            if found.is_error():
                raise GrammarError(_said(found))
            _require_beginning(found.deep_copy())
            with self._lock:
                self._compiled[grammar] = found
                while len(self._compiled) > self._remembered:
                    self._compiled.popitem(last=False)
        return Matcher(found.deep_copy(), self._vocabulary.vocab_size)
