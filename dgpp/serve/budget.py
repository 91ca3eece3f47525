"""How many tokens a request may produce, once the length of its prompt is known."""

from __future__ import annotations

from dgpp.sched.admission import CONTEXT_LENGTH_EXCEEDED
from dgpp.serve.errors import ApiError, invalid
from dgpp.serve.request import GenerationRequest
from dgpp.serve.served import ServedModel


def token_budget(prompt_tokens: int, request: GenerationRequest, model: ServedModel) -> int:
    """`request.max_tokens`, or the default cut to the room that the prompt leaves.

    Raises a 400 ApiError (`context_length_exceeded`): naming the prompt's field where the prompt
    leaves no room, the field of the answer's length where it leaves less than was asked for.
    """
    if prompt_tokens < 1:
        field = request.prompt_field
        raise invalid(f"{field} must give at least one token", field)
    asked, room = request.max_tokens, model.request_limit - prompt_tokens
    if room < (1 if asked is None else min(asked, 1)):
        raise prompt_too_long(f"The prompt has {prompt_tokens} tokens", request, model)
    if asked is None:
        return min(model.default_max_tokens, room)
    if asked > room:
        field = request.max_tokens_field
        message = (
            f"{field} is {asked} beside a prompt of {prompt_tokens} tokens: "
            f"{prompt_tokens + asked} in all, {_limit(model)}"
        )
        raise invalid(message, field, CONTEXT_LENGTH_EXCEEDED)
    return asked


def prompt_too_long(message: str, request: GenerationRequest, model: ServedModel) -> ApiError:
    """400 `context_length_exceeded`: `message` says how long the prompt is."""
    text = f"{message}, {_limit(model)}, the answer included"
    return invalid(text, request.prompt_field, CONTEXT_LENGTH_EXCEEDED)


def _limit(model: ServedModel) -> str:
    return f"the limit is {model.request_limit} ({model.limited_by})"
