"""How likely the tokens of a prompt were: the log probabilities of ids that nobody drew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.sample.candidates import Candidates
from dgpp.sample.head import Head, full_head
from dgpp.text.delta import RowLogprobs

F32Array = npt.NDArray[np.float32]


class ScoredPrompt(msgspec.Struct, frozen=True, array_like=True):
    """What a step found of the prompt in `slot`: `rows` are of its next tokens, in order, beginning
    with its second token (nothing stands before the first)."""

    slot: int
    rows: tuple[RowLogprobs, ...]


def untold(found: Candidates, tokens: Sequence[int], top: int) -> list[int]:
    """The rows whose candidates miss the row's own token or some of the `top` best ids."""
    ids = found.ids[: len(tokens)]
    misses = ~(ids == np.asarray(tokens, np.int32)[:, None]).any(axis=1)
    short = found.held < np.minimum(top, found.present)
    rows: list[int] = np.flatnonzero(misses | short).tolist()
    return rows


def row_scores(
    found: Candidates, tokens: Sequence[int], top: int, whole: Mapping[int, F32Array]
) -> list[RowLogprobs]:
    """Log probabilities of `tokens[r]` in row r and of the row's `top` best ids, best first.

    Of the distribution at temperature 1 whose logits `found` was selected from; `whole` holds those
    of the rows that `untold` names, float32 [V] each.
    """
    scores = []
    for row, token in enumerate(tokens):
        held, lse = int(found.held[row]), float(found.lse[row])
        ids, logits = found.ids[row, :held], found.logits[row, :held]
        present = int(found.present[row])
        full = whole.get(row)
        if full is None:
            head = Head(ids, logits, present, lse, 1.0)
            own = head.scaled[ids.tolist().index(token)]
        else:
            head = full_head(full, max(top, 1), present, lse, 1.0)
            own = float(full[token])
        best = [min(0.0, logit - lse) for logit in head.scaled[:top]]
        scores.append(RowLogprobs(min(0.0, own - lse), tuple(head.ids[:top].tolist()), tuple(best)))
    return scores
