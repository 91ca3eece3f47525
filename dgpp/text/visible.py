"""The log probabilities of the tokens that a client sees, in step with the text it is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dgpp.text.bytelevel import TokenBytes
from dgpp.text.delta import RowLogprobs, TokenLogprob, TopLogprob


class VisibleTokens:
    """Tokens with logprobs wait here until all their bytes are dealt out.

    A token is told if any of its bytes is text; `raw` are those that are, so that over a choice
    they join to the text's own bytes. With `every`, all tokens are told.
    """

    def __init__(self, table: TokenBytes, *, every: bool = False) -> None:
        self._table = table
        self._every = every
        self._waiting: deque[tuple[int, int, int, RowLogprobs]] = deque()
        self._shown: deque[tuple[int, int]] = deque()

    def add(
        self,
        start: int,
        tokens: Sequence[int],
        pieces: Sequence[bytes],
        logprobs: Sequence[RowLogprobs],
    ) -> None:
        """`tokens` of bytes `pieces` begin at offset `start`; `logprobs` is parallel or empty."""
        for token, piece, row in zip(tokens, pieces, logprobs, strict=False):
            if piece or self._every:
                self._waiting.append((start, start + len(piece), token, row))
                start += len(piece)

    def show(self, start: int, size: int) -> None:
        """`size` bytes from offset `start` on are text."""
        if not self._waiting:
            return
        if self._shown and self._shown[-1][1] == start:
            self._shown[-1] = (self._shown[-1][0], start + size)
        else:
            self._shown.append((start, start + size))

    def due(self, resolved: int, *, finished: bool) -> tuple[TokenLogprob, ...]:
        """Entries of the tokens that end at `resolved` or before; of all, when `finished`."""
        entries = []
        while self._waiting and (finished or self._waiting[0][1] <= resolved):
            start, end, token, row = self._waiting.popleft()
            while self._shown and self._shown[0][1] <= start:
                self._shown.popleft()
            raw = self._table.raw(token)
            kept = b"".join(
                raw[max(0, low - start) : high - start]
                for low, high in self._shown
                if low < end and high > start
            )
            if kept or self._every:
                entries.append(token_logprob(self._table, token, row, kept))
        return tuple(entries)


def token_logprob(table: TokenBytes, token: int, row: RowLogprobs, shown: bytes) -> TokenLogprob:
    """What is told of `token`, `shown` of which is text; one that shows nothing is told by name."""
    text, literal = table.named(token)
    if shown and shown != literal:
        text = shown.decode("utf-8", "replace")
    top = tuple(
        TopLogprob(*table.named(other), value)
        for other, value in zip(row.ids, row.values, strict=True)
    )
    return TokenLogprob(text, shown, row.logprob, top)
