"""Keeps text that came from a client from ever being read as a control token.

A template joins its own control tokens with the client's strings, and afterwards nobody can tell
them apart. So the client's strings are marked first: a sentinel, a character that occurs in none
of them, is put where a control token begins, or could begin or end once the template has added
its own text around the string. In the rendered text a control token counts only where its
characters stand together and no sentinel stands before them; then the sentinels are taken out.
Marks stand before a token's text and not inside it, so that a template which looks for
`</think>` in an answer still finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

# Noncharacters first: no sound text holds them. Then a private plane, for text that is not sound.
_CANDIDATES = [*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xFFFFE)]
_FIRST = chr(_CANDIDATES[0])


def choose_sentinel(texts: Iterable[str]) -> str:
    """A character that occurs in none of `texts`.

    Raises ValueError where the texts use up all 65,566 candidates.
    """
    texts = list(texts)
    if not any(_FIRST in text for text in texts):
        return _FIRST
    used: set[str] = set().union(*texts)
    for code in _CANDIDATES:
        if chr(code) not in used:
            return chr(code)
    raise ValueError("no character is free to mark control tokens with")


def _longest_of(tokens: Iterable[str]) -> str:
    """A pattern for the longest of `tokens`, by their common heads: one branch per character."""
    branches: dict[str, list[str]] = {}
    for token in tokens:
        if token:
            branches.setdefault(token[0], []).append(token[1:])
    if not branches:
        return ""
    pattern = "|".join(re.escape(head) + _longest_of(rest) for head, rest in branches.items())
    return f"(?:{pattern})?" if "" in tokens else f"(?:{pattern})"


def _patterns(tokens: Iterable[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Leftmost-longest tokens as the tokenizer reads them; the first character of every token,
    overlapping ones too."""
    by_head: dict[str, list[str]] = {}
    for token in tokens:
        by_head.setdefault(token[0], []).append(token[1:])
    if not by_head:
        return re.compile(r"(?!)"), re.compile(r"(?!)")
    rests = {re.escape(head): _longest_of(rest) for head, rest in by_head.items()}
    whole = "|".join(head + rest for head, rest in rests.items())
    starts = "|".join(f"{head}(?={rest})" for head, rest in rests.items())
    return re.compile(whole), re.compile(starts)


class ControlGuard:
    """Marks client text, and splits rendered text at the control tokens that are not marked."""

    def __init__(self, tokens: dict[str, int]) -> None:
        """`tokens`: the text of each control token and its id."""
        self._ids = tokens
        self._match, self._starts = _patterns(tokens)
        self._heads = {token[:cut] for token in tokens for cut in range(1, len(token))}
        self._tails = {token[cut:] for token in tokens for cut in range(1, len(token))}
        self._joined = "\n".join(tokens)
        self._longest = max(map(len, tokens), default=0)

    def mark(self, text: str, sentinel: str) -> str:
        """`text` with a sentinel before each control token and each possible part of one."""
        size = min(len(text), self._longest - 1)
        places = {found.start() for found in self._starts.finditer(text)}
        places |= {len(text) - cut for cut in range(1, size + 1) if text[-cut:] in self._heads}
        if any(text[:cut] in self._tails for cut in range(1, size + 1)) or (
            text and len(text) < self._longest and text in self._joined
        ):
            places.add(0)
        if not places:
            return text
        cuts = [0, *sorted(places), len(text)]
        return sentinel.join(text[low:high] for low, high in pairwise(cuts))

    def split(self, rendered: str, sentinel: str | None) -> Iterator[str | int]:
        """Plain text and control ids in order; marks are taken out of the text."""
        start = 0
        for found in self._match.finditer(rendered):
            at = found.start()
            if sentinel is not None and at and rendered[at - 1] == sentinel:
                continue
            if at > start:
                yield _clean(rendered[start:at], sentinel)
            yield self._ids[found.group()]
            start = found.end()
        if start < len(rendered):
            yield _clean(rendered[start:], sentinel)


def _clean(text: str, sentinel: str | None) -> str:
    return text if sentinel is None else text.replace(sentinel, "")
