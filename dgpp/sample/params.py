"""Sampling parameters of one request, validated where the request enters."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one request's tokens are drawn; the order of application is fixed (docs/design.md).

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. `logprobs` is -1 for
    none, else the number (0..20) of alternatives listed beside each chosen token. `logit_bias`
    holds (token id, bias) with ids below the vocabulary size. None of the first `min_tokens` tokens
    is one that ends the text.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int = -1
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0.0

    @property
    def biased(self) -> bool:
        return bool(self.logit_bias) or self.min_tokens > 0

    @property
    def penalised(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )
