"""Bodies of POST /v1/completions to requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from dgpp.sched.request import pack_ids
from dgpp.serve import limits
from dgpp.serve.errors import invalid
from dgpp.serve.fields import Body, Fields
from dgpp.serve.options import SHARED, ignored_fields, shared_options
from dgpp.serve.request import GenerationRequest
from dgpp.serve.served import ServedModel

_REFUSED: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": (),
    "top_logprobs": (),
    "n": (1,),
    "best_of": (1,),
    "user": (),
}
"""Fields that are not served, each with the values that change nothing."""

_KNOWN = SHARED | _REFUSED.keys() | {"prompt"}


def parse_completion(body: Body, id: str, model: ServedModel) -> GenerationRequest:  # noqa: A002
    """The request in `body`. Raises ApiError naming the field."""
    fields = Fields.of(body)
    logprobs = fields.integer("logprobs", 0, limits.LEGACY_LOGPROBS)
    shared = shared_options(fields, model, -1 if logprobs is None else logprobs)
    for name, neutral in _REFUSED.items():
        fields.refuse(name, neutral)
    return GenerationRequest(
        id=id,
        kind="completion",
        max_tokens=fields.integer("max_tokens", 1, limits.MAX_TOKENS),
        ignored=ignored_fields(fields, _KNOWN),
        **shared,
        **_prompts(fields, model.vocab_size),
    )


def _prompts(fields: Fields, vocab_size: int) -> dict[str, Any]:
    """`prompt`: a text, token ids, or an array of either kind."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return {"prompts": (prompt,)}
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return {"prompt_ids": (_packed(prompt, "prompt", vocab_size),)}
        if len(prompt) > limits.CHOICES:
            message = f"prompt has {len(prompt)} entries, the limit is {limits.CHOICES}"
            raise invalid(message, "prompt")
        if all(isinstance(entry, str) for entry in prompt):
            return {"prompts": tuple(prompt)}
        if all(isinstance(entry, list) for entry in prompt):
            lists = enumerate(prompt)
            return {
                "prompt_ids": tuple(_packed(ids, f"prompt[{i}]", vocab_size) for i, ids in lists)
            }
    raise invalid("prompt must be a string, an array of token ids, or an array of these", "prompt")


def _packed(ids: list[Any], at: str, vocab_size: int) -> bytes:
    if not ids or set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= vocab_size:
        raise invalid(f"{at} must hold token ids from 0 to {vocab_size - 1}", at)
    return pack_ids(np.array(ids, dtype=np.uint32))
