"""What front ends know of the model they serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dgpp.sample.params import SamplingParams
from dgpp.serve import limits


class ServedModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identity, sizes and defaults of the model behind the API.

    `id` is the name in answers; requests may also use an alias. `position_ceiling` bounds prompt
    and answer together, `kv_pool_tokens` is what the block pool can hold of one request.
    `ping_interval` is in seconds, -1 for none. `no_eos`: every answer runs to its length limit.
    `reasoning_in_content`: the think tags are text. `whole_arguments`: a call's arguments come in
    one piece. `tools`: the model's template knows calls. `efforts`: the template variables that
    each reasoning effort stands for. `text`: it has a tokenizer. `scores`: it can tell how likely a
    prompt's own tokens were. `cut_tokens`
    divides the positions where prompts are cut for the prefix cache; 0 where it need not know where
    turns begin.
    """

    id: str
    vocab_size: int
    position_ceiling: int
    kv_pool_tokens: int
    aliases: tuple[str, ...] = ()
    sampling: SamplingParams = SamplingParams()
    template_kwargs: dict[str, bool | str] = {}
    efforts: dict[str, dict[str, bool | str]] = {}
    default_max_tokens: int = 256
    ping_interval: int = 30
    created: int = 0
    no_eos: bool = False
    reasoning_in_content: bool = False
    whole_arguments: bool = False
    tools: bool = False
    text: bool = True
    scores: bool = True
    cut_tokens: int = 0

    def answers_to(self, name: str) -> bool:
        return name == self.id or name in self.aliases

    @property
    def request_limit(self) -> int:
        """Tokens that one request may have in all."""
        return min(self.position_ceiling, self.kv_pool_tokens)

    @property
    def pool_limited(self) -> bool:
        """The block pool, not the model's own context, is what bounds a request. An engine's
        ceiling is never above its pool."""
        return self.kv_pool_tokens <= self.position_ceiling

    @property
    def limited_by(self) -> str:
        """What bounds a request, in words for the client."""
        return "engine.kv_capacity" if self.pool_limited else "the model's own context"


_DEFAULTS: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0.0, 2.0),
    "top_p": (float, 0.0, 1.0),
    "top_k": (int, 0, limits.TOP_K),
    "min_p": (float, 0.0, 1.0),
    "repetition_penalty": (float, limits.LEAST_REPETITION_PENALTY, limits.REPETITION_PENALTY),
}


def sampling_defaults(generation_config: Mapping[str, Any]) -> SamplingParams:
    """What a request gets that says nothing, from a model's generation_config.json.

    A value out of the range that requests have is left out: it cannot have been meant.
    """
    found = {}
    for name, (kind, low, high) in _DEFAULTS.items():
        value = generation_config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            found[name] = kind(value)
    return with_top_p(SamplingParams(**found))


def with_top_p(params: SamplingParams) -> SamplingParams:
    """`top_p` 0 asks for the best token alone: `top_k` 1 says the same."""
    if params.top_p > 0.0:
        return params
    return msgspec.structs.replace(params, top_p=1.0, top_k=1)
