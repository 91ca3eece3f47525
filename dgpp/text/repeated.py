"""The prompt of a raw completion that is to begin with it, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.text.bytelevel import TokenBytes
from dgpp.text.delta import RowLogprobs, TokenLogprob
from dgpp.text.visible import token_logprob

_FIRST = RowLogprobs(0.0)
"""In the first token's place: nothing stands before it, so nothing can be said of it."""


class RepeatedPrompt:
    """Tells the tokens `ids` once, in order: as far as they are scored, then the rest."""

    def __init__(self, table: TokenBytes, ids: Sequence[int], *, scored: bool) -> None:
        self._table = table
        self._ids = ids
        self._scored = scored
        self._told = 0

    def scored(self, rows: Sequence[RowLogprobs]) -> tuple[bytes, list[TokenLogprob]]:
        """Bytes and entries of the next tokens, of which `rows` speak."""
        return self._tell(rows if self._told else [_FIRST, *rows])

    def rest(self) -> tuple[bytes, list[TokenLogprob]]:
        """All that was not told yet: without scores the whole prompt, else at most its first."""
        left = len(self._ids) - self._told
        if self._scored and left:
            return self._tell([_FIRST])
        return self._bytes(left), []

    def _tell(self, rows: Sequence[RowLogprobs]) -> tuple[bytes, list[TokenLogprob]]:
        ids = self._ids[self._told : self._told + len(rows)]
        entries = [
            token_logprob(self._table, token, row, self._table.raw(token))
            for token, row in zip(ids, rows, strict=True)
        ]
        return self._bytes(len(rows)), entries

    def _bytes(self, count: int) -> bytes:
        ids = self._ids[self._told : self._told + count]
        self._told += count
        return b"".join(map(self._table.raw, ids))
