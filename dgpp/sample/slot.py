"""The sampler of one slot: from the rows of a step to the tokens it commits."""

from __future__ import annotations

from typing import NamedTuple

from dgpp.errors import DgppError
from dgpp.sample.logprobs import reportable, row_logprobs
from dgpp.sample.pipeline import choose, choose_greedy
from dgpp.sample.rng import uniform
from dgpp.sample.rows import Rows
from dgpp.sched.request import Submit
from dgpp.sched.verdict import Finish, commit
from dgpp.text.delta import RowLogprobs


class PickMismatchError(DgppError):
    """The engine fed on a token that is not the one the rule gives: a bug of the engine."""

    exit_status = 2


class SlotStep(NamedTuple):
    """What one step committed for one choice; `logprobs` is empty or one entry a token. Of its
    prompt `cached` tokens came from the prefix cache, `decoded` of them written by decode. Or else
    `prompt` says how likely the next tokens of the prompt were, and nothing is committed."""

    id: str
    tokens: tuple[int, ...]
    finish: Finish
    logprobs: tuple[RowLogprobs, ...] = ()
    cached: int = 0
    decoded: int = 0
    prompt: tuple[RowLogprobs, ...] = ()


class SlotSampler:
    """Draws for one choice, in a stream that depends on its seed and its own draws alone.

    `draws` counts the random numbers consumed, `produced` the tokens committed. `fed` says whether
    the engine picked the last token itself, as rows that ran ahead of the verdict suppose. `stuck`:
    where nothing may follow, the answer is cut off, not complete. `cached` and `decoded` are what
    the first step reports of the prompt.
    """

    __slots__ = (
        "_greedy",
        "_params",
        "_plain",
        "cached",
        "decoded",
        "draws",
        "ended",
        "fed",
        "produced",
        "stuck",
        "submit",
    )

    def __init__(self, submit: Submit, cached: int = 0, decoded: int = 0) -> None:
        params = submit.sampling
        self.submit = submit
        self.cached = cached
        self.decoded = decoded
        self.produced = 0
        self.draws = 0
        self.ended = False
        self.fed = False
        self.stuck = False
        self._params = params
        self._greedy = params.greedy
        # Greedy without logprobs: the first id says it all.
        self._plain = params.greedy and params.logprobs < 0

    def is_void(self, *, ran_ahead: bool) -> bool:
        """Whether a row says nothing: the choice has ended, or the row (`ran_ahead`) feeds on a
        pick that the engine did not make."""
        return self.ended or (ran_ahead and not self.fed)

    def step(self, rows: Rows, start: int, end: int) -> SlotStep | int:
        """Sample rows [start, end), the slot's own and its drafts', and commit.

        Each row is sampled as plain decode would, with the next draw of the stream; the next row
        counts only if the token sampled is the one that was fed there. So drafts change how many
        tokens a step gives, never which. Returns a row's number, with nothing changed, where that
        row is needed in full. Raises PickMismatchError where the engine picked another token.
        """
        submit = self.submit
        tokens: list[int] = []
        logprobs: list[RowLogprobs] = []
        first, drafts = rows.first, rows.drafts
        stop_ids = submit.stop_ids
        barren = False
        last = min(end, start + submit.max_tokens - self.produced)
        for row in range(start, last):
            if self._plain and first[row] >= 0:
                token = first[row]
            else:
                drawn = self._draw(rows, row, len(tokens))
                if drawn is None:
                    barren = rows.barren(row)
                    if barren:
                        break
                    return row
                token, reported = drawn
                logprobs.extend(reported)
            tokens.append(token)
            if token != drafts[row] or token in stop_ids:
                break
        kept, finish = commit(tokens, self.produced, submit.max_tokens, stop_ids)
        if barren and not kept:
            # Nothing may follow: what was asked for is complete, unless it is stuck. After tokens
            # of this step the next one will say so, since EOS marks the last as the end token.
            finish = Finish.LENGTH if self.stuck else Finish.EOS
        found = (self.cached, self.decoded) if not self.produced else (0, 0)
        self._compare(kept, rows.picks[start : start + len(kept)])
        self.ended = finish is not Finish.NONE
        self.produced += len(kept)
        if not self._greedy:
            self.draws += len(kept)
        return SlotStep(submit.id, kept, finish, tuple(logprobs), *found)

    def _compare(self, kept: tuple[int, ...], picks: list[int]) -> None:
        for token, pick in zip(kept, picks, strict=True):
            if pick not in (token, -1):
                raise PickMismatchError(
                    f"sampler: {self.submit.id!r}: the engine picked {pick} as token "
                    f"{self.produced}, the rule gives {token}"
                )
        self.fed = bool(picks) and picks[-1] >= 0

    def _draw(self, rows: Rows, row: int, ahead: int) -> tuple[int, tuple[RowLogprobs, ...]] | None:
        """The token of `row`, `ahead` draws from now; None where its candidates do not decide."""
        params = self._params
        top = params.logprobs
        u = 0.0 if self._greedy else uniform(self.submit.seed, self.draws + ahead)
        for head in rows.heads(row, 1.0 if self._greedy else params.temperature):
            choice = choose_greedy(head) if self._greedy else choose(params, head, u)
            if choice is not None and reportable(head, choice, top):
                token = int(head.ids[choice.rank])
                return token, (() if top < 0 else (row_logprobs(head, choice, top),))
        return None
