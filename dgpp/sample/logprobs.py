"""What is reported of the distribution a token was drawn from."""

from __future__ import annotations

from dgpp.sample.head import Head
from dgpp.sample.pipeline import Choice
from dgpp.text.delta import RowLogprobs


def reportable(head: Head, choice: Choice, top: int) -> bool:
    """Whether `head` holds the `top` best survivors."""
    return head.held >= min(top, choice.survivors)


def row_logprobs(head: Head, choice: Choice, top: int) -> RowLogprobs:
    """The chosen token's log probability and those of the `top` best survivors, best first.

    Where the chosen token is not among those, it takes the last place: a list never misses the
    token it stands beside, and is never longer than was asked for.
    """
    indices = list(range(min(top, choice.survivors)))
    if indices and choice.rank >= len(indices):
        indices[-1] = choice.rank
    values = [_logprob(head, choice, index) for index in indices]
    return RowLogprobs(
        _logprob(head, choice, choice.rank),
        tuple(head.ids[indices].tolist()) if indices else (),
        tuple(values),
    )


def _logprob(head: Head, choice: Choice, index: int) -> float:
    # Rounding may put a near-certain token a hair above 0.
    return min(0.0, head.scaled[index] - choice.log_norm)
