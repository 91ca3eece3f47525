"""One choice's tokens to its answer, the same code for streams and whole answers."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from dgpp.sched.verdict import Finish
from dgpp.text.bytelevel import TokenBytes
from dgpp.text.delta import Delta, RowLogprobs, TextPart, TokenLogprob, TopLogprob
from dgpp.text.holdback import HoldBack

REASONS = {
    Finish.EOS: "stop",
    Finish.STOP: "stop",
    Finish.CANCELLED: "stop",
    Finish.LENGTH: "length",
    Finish.POOL_EXHAUSTED: "length",
}
"""What a client reads for each way a request ends."""

_decoder = codecs.getincrementaldecoder("utf-8")


class OutputStream:
    """Turns the tokens of one choice into deltas.

    However the tokens are cut into steps, the deltas join to the same text, logprobs, finish and
    count. Text that was sent is never taken back: what may still become a stop string and the
    bytes of an unfinished character wait, and come out when the choice ends.

    `completion_tokens` counts tokens up to the end token, or the one that completed a stop
    string. `stop_found` is set where a stop string ended the text: the engine does not know yet.
    `finished` is set after the last delta; whatever is fed then is dropped.
    """

    def __init__(self, table: TokenBytes, id: str, choice: int, stop: Sequence[str] = ()) -> None:  # noqa: A002
        self.completion_tokens = 0
        self.stop_found = False
        self.finished = False
        self._table = table
        self._id = id
        self._choice = choice
        self._router = HoldBack(tuple(text.encode() for text in stop)) if stop else None
        self._decoder = _decoder("replace")
        self._fed = 0
        self._released = 0
        self._waiting: deque[tuple[int, int, RowLogprobs]] = deque()

    def feed(
        self,
        tokens: Sequence[int],
        finish: Finish = Finish.NONE,
        logprobs: Sequence[RowLogprobs] = (),
    ) -> Delta | None:
        """The news that `tokens` bring, None if they bring nothing to show.

        `finish` says that the last of `tokens` is the choice's last; with EOS it is an end token
        and not shown. `logprobs` is empty or parallel to `tokens`.
        """
        if self.finished:
            return None
        shown = tokens[:-1] if finish is Finish.EOS else tokens
        pieces = [self._table.raw(token) for token in shown]
        self._queue_logprobs(shown, pieces, logprobs)
        data = b"".join(pieces)
        if self._router is not None:
            data, match = self._router.push(data)
            if match is not None:
                tokens = tokens[: self._tokens_through(match.end, pieces)]
                finish = Finish.STOP
                self.stop_found = True
            elif finish is not Finish.NONE:
                data += self._router.flush()
        self._fed += sum(map(len, pieces))
        self._released += len(data)
        self.completion_tokens += len(tokens)
        self.finished = finish is not Finish.NONE
        text = self._decoder.decode(data, self.finished)
        entries = self._due_logprobs() if self._waiting else ()
        if not (text or entries or self.finished):
            return None
        return Delta(
            self._id,
            self._choice,
            self.completion_tokens,
            (TextPart(text),) if text else (),
            entries,
            REASONS.get(finish),
        )

    def _queue_logprobs(
        self, shown: Sequence[int], pieces: list[bytes], logprobs: Sequence[RowLogprobs]
    ) -> None:
        end = self._fed
        for token, piece, row in zip(shown, pieces, logprobs, strict=False):
            end += len(piece)
            if piece:
                self._waiting.append((end, token, row))

    def _tokens_through(self, end: int, pieces: list[bytes]) -> int:
        """How many tokens of this step reach byte `end` of the stream."""
        at = self._fed
        for count, piece in enumerate(pieces, 1):
            at += len(piece)
            if at >= end:
                return count
        return len(pieces)

    def _due_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Entries of the tokens whose bytes are all released; at a stop, what is left of one."""
        due = []
        while self._waiting and self._waiting[0][0] <= self._released:
            _, token, row = self._waiting.popleft()
            due.append(self._entry(token, row, None))
        if self.finished and self._waiting:
            end, token, row = self._waiting[0]
            kept = self._released - end + len(self._table.raw(token))
            if kept > 0:
                due.append(self._entry(token, row, kept))
            self._waiting.clear()
        return tuple(due)

    def _entry(self, token: int, row: RowLogprobs, kept: int | None) -> TokenLogprob:
        named = self._table.named
        text, raw = named(token)
        if kept is not None:
            raw = raw[:kept]
            text = raw.decode("utf-8", "replace")
        top = tuple(
            TopLogprob(*named(other), value)
            for other, value in zip(row.ids, row.values, strict=True)
        )
        return TokenLogprob(text, raw, row.logprob, top)
