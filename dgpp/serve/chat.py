"""Bodies of POST /v1/chat/completions to requests."""

from __future__ import annotations

from typing import Any

from dgpp.serve import limits
from dgpp.serve.conversation import parse_messages
from dgpp.serve.errors import invalid
from dgpp.serve.fields import Body, Fields
from dgpp.serve.options import SHARED, ignored_fields, shared_options
from dgpp.serve.reasoning import chat_variables
from dgpp.serve.request import GenerationRequest
from dgpp.serve.response_format import parse_response_format
from dgpp.serve.served import ServedModel
from dgpp.serve.tools import parse_tools

_REFUSED: dict[str, tuple[Any, ...]] = {
    "web_search_options": (),
    "functions": (),
    "function_call": (),
    "prompt_cache_options": (),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "verbosity": (),
    "store": (False,),
}
"""Fields that are not served, each with the values that change nothing."""

_OWN = {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice"}
_OWN |= {"parallel_tool_calls", "response_format", "reasoning_effort", "chat_template_kwargs"}
_OWN |= {"metadata", "user", "safety_identifier", "service_tier", "modalities"}
_KNOWN = SHARED | _REFUSED.keys() | _OWN


def parse_chat(body: Body, id: str, model: ServedModel) -> GenerationRequest:  # noqa: A002
    """The request in `body`. Raises ApiError naming the field."""
    fields = Fields.of(body)
    shared = shared_options(fields, model, _logprobs(fields))
    for name, neutral in _REFUSED.items():
        fields.refuse(name, neutral)
    fields.text("user")
    fields.text("safety_identifier", longest=limits.SAFETY_IDENTIFIER_CHARS)
    fields.refuse("modalities", (["text"],))
    tier = fields.one_of("service_tier", ("auto", "default"))
    offer = parse_tools(fields)
    return GenerationRequest(
        id=id,
        kind="chat",
        messages=parse_messages(fields),
        template_kwargs=chat_variables(fields, model),
        answer=parse_response_format(fields),
        n=fields.integer("n", 1, limits.CHOICES) or 1,
        **_max_tokens(fields),
        metadata=_metadata(fields),
        service_tier=tier and "default",
        ignored=ignored_fields(fields, _KNOWN),
        **shared,
        **offer._asdict(),
    )


def _logprobs(fields: Fields) -> int:
    """-1 for none, else the number of alternatives."""
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, limits.TOP_LOGPROBS)
    if top is not None and not wanted:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    return (top or 0) if wanted else -1


def _max_tokens(fields: Fields) -> dict[str, Any]:
    """Under either name, and which it was."""
    old = fields.integer("max_tokens", 1, limits.MAX_TOKENS)
    new = fields.integer("max_completion_tokens", 1, limits.MAX_TOKENS)
    if old is not None and new is not None:
        message = "max_tokens and max_completion_tokens must not both be given"
        raise invalid(message, "max_completion_tokens")
    if new is not None:
        return {"max_tokens": new, "max_tokens_field": "max_completion_tokens"}
    return {"max_tokens": old}


def _metadata(fields: Fields) -> dict[str, str] | None:
    given = fields.object("metadata")
    if given is None:
        return None
    if len(given.members) > limits.METADATA_KEYS:
        message = f"metadata has {len(given.members)} keys, the limit is {limits.METADATA_KEYS}"
        raise invalid(message, "metadata")
    for key in given.members:
        if len(key) > limits.METADATA_KEY_CHARS:
            message = f"a metadata key has over {limits.METADATA_KEY_CHARS} characters"
            raise invalid(message, "metadata")
    return {
        key: given.needed_text(key, longest=limits.METADATA_VALUE_CHARS) for key in given.members
    }
