"""sampler → tokenizer."""

from __future__ import annotations

import msgspec

from dgpp.sched.verdict import Finish
from dgpp.text.delta import RowLogprobs


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens committed for submission `id`; `logprobs` is empty or one entry a token.

    The first of a submission tell what of its prompt came from the prefix cache: `cached` tokens,
    `decoded` of them written by decode. Where `prompt` says how likely the next tokens of the
    prompt were, there is nothing else.
    """

    id: str
    tokens: tuple[int, ...]
    finish: Finish = Finish.NONE
    logprobs: tuple[RowLogprobs, ...] = ()
    cached: int = 0
    decoded: int = 0
    prompt: tuple[RowLogprobs, ...] = ()


class Committed(msgspec.Struct, frozen=True):
    """One step's tokens; `committed_ns` is the monotonic clock when they were decided."""

    items: tuple[Tokens, ...]
    committed_ns: int
