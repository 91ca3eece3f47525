"""Bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from dgpp.sched.request import pack_ids, unpack_ids
from dgpp.serve import limits
from dgpp.serve.conversation import parse_messages
from dgpp.serve.errors import invalid
from dgpp.serve.fields import Body, Fields
from dgpp.serve.request import GenerationRequest
from dgpp.serve.served import ServedModel
from dgpp.serve.tools import parse_tools


def parse_tokenize(body: Body, id: str, model: ServedModel) -> GenerationRequest:  # noqa: A002
    """What is to be encoded: `prompt` (a text), or `messages` with their `tools`.

    Raises ApiError naming the field.
    """
    fields = Fields.of(body)
    prompt = fields.text("prompt")
    if (prompt is None) == (fields.get("messages") is None):
        raise invalid("either prompt or messages is required", "prompt")
    tools = parse_tools(fields).tools
    if prompt is not None:
        return GenerationRequest(id=id, kind="completion", model=model.id, prompts=(prompt,))
    return GenerationRequest(
        id=id,
        kind="chat",
        model=model.id,
        messages=parse_messages(fields),
        tools=tools,
        template_kwargs=model.template_kwargs,
    )


def tokenize_object(ids: bytes, model: ServedModel) -> dict[str, Any]:
    """The answer of /tokenize: `ids` are packed u32."""
    tokens = unpack_ids(ids).tolist()
    return {"count": len(tokens), "max_model_len": model.request_limit, "tokens": tokens}


def parse_detokenize(body: Body, model: ServedModel) -> bytes:
    """Packed u32 ids of `tokens`. Raises ApiError naming the field."""
    fields = Fields.of(body)
    tokens = fields.array("tokens", limits.TOKENS)
    if tokens is None:
        raise invalid("tokens is required", "tokens")
    for token in tokens:
        known = isinstance(token, int) and not isinstance(token, bool)
        if not known or not 0 <= token < model.vocab_size:
            raise invalid(f"tokens must be ids from 0 to {model.vocab_size - 1}", "tokens")
    return pack_ids(tokens)
