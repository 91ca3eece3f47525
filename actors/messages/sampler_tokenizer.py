"""sampler → tokenizer."""

from __future__ import annotations

import msgspec

from dgpp.sched.verdict import Finish
from dgpp.text.delta import RowLogprobs


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens committed for submission `id`; `logprobs` is empty or one entry a token."""

    id: str
    tokens: tuple[int, ...]
    finish: Finish = Finish.NONE
    logprobs: tuple[RowLogprobs, ...] = ()


class Committed(msgspec.Struct, frozen=True):
    """One step's tokens; `committed_ns` is the monotonic clock when they were decided."""

    items: tuple[Tokens, ...]
    committed_ns: int
