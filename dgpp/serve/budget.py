"""How many tokens a request may produce, once the length of its prompt is known."""

from __future__ import annotations

from dgpp.serve.errors import invalid
from dgpp.serve.served import ServedModel


def token_budget(
    prompt_tokens: int, max_tokens: int | None, model: ServedModel, param: str = "messages"
) -> int:
    """`max_tokens`, or the default cut to the room that the prompt leaves.

    Raises a 400 ApiError (`context_length_exceeded`) where the prompt leaves no room, or not as
    much as was asked for. `param` is the field that holds the prompt.
    """
    if prompt_tokens < 1:
        raise invalid(f"{param} must give at least one token", param)
    limit = model.request_limit
    room = limit - prompt_tokens
    if room < (1 if max_tokens is None else min(max_tokens, 1)):
        message = f"The prompt has {prompt_tokens} tokens, the limit is {limit} with the answer"
        raise invalid(message, param, "context_length_exceeded")
    if max_tokens is None:
        return min(model.default_max_tokens, room)
    if max_tokens > room:
        message = (
            f"The prompt has {prompt_tokens} tokens and {max_tokens} are asked for: "
            f"{prompt_tokens + max_tokens} in all, the limit is {limit}"
        )
        raise invalid(message, param, "context_length_exceeded")
    return max_tokens
