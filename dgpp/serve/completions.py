"""Bodies of POST /v1/completions to requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from dgpp.sched.request import pack_ids
from dgpp.serve import limits
from dgpp.serve.errors import invalid, unsupported
from dgpp.serve.fields import Body, Fields
from dgpp.serve.options import SHARED, ignored_fields, shared_options
from dgpp.serve.request import GenerationRequest
from dgpp.serve.served import ServedModel

_KNOWN = SHARED | {"prompt", "echo", "suffix", "best_of", "top_logprobs", "user"}


def parse_completion(body: Body, id: str, model: ServedModel) -> GenerationRequest:  # noqa: A002
    """The request in `body`. Raises ApiError naming the field.

    Legacy `logprobs` counts alternatives to the token itself, so one more is asked for.
    """
    fields = Fields.of(body)
    logprobs = fields.integer("logprobs", 0, limits.LEGACY_LOGPROBS)
    shared = shared_options(fields, model, -1 if logprobs is None else logprobs + 1)
    n = fields.integer("n", 1, limits.CHOICES) or 1
    fields.refuse("suffix")
    fields.refuse("top_logprobs")
    # The best n of n are all of them.
    fields.refuse("best_of", (n,))
    fields.text("user")
    repeats = fields.boolean("echo")
    if repeats and logprobs is not None and not model.scores:
        raise unsupported("echo with logprobs is not supported on several GPUs", "echo")
    return GenerationRequest(
        id=id,
        kind="completion",
        n=n,
        max_tokens=fields.integer("max_tokens", 0, limits.MAX_TOKENS),
        repeats_prompt=repeats,
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
