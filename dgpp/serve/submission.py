"""A request to the submissions of its choices: rendered, encoded, bounded."""

from __future__ import annotations

from typing import NamedTuple

from dgpp.sched.request import Submit, pack_ids, unpack_ids
from dgpp.serve.budget import token_budget
from dgpp.serve.errors import invalid, prompt_refused
from dgpp.serve.request import GenerationRequest, choice_seed
from dgpp.serve.served import ServedModel
from dgpp.text.codec import TextCodec
from dgpp.text.errors import TemplateError, TokenRangeError


class Submission(NamedTuple):
    """The choices of one request, `<id>-<k>` in order, and its prompt tokens in all."""

    submits: tuple[Submit, ...]
    prompt_tokens: int


def submission(
    request: GenerationRequest, seed: int, codec: TextCodec, model: ServedModel, now: float
) -> Submission:
    """What the scheduler is asked for. `now` is in Unix seconds, for templates that tell the date.

    Raises a 400 ApiError where the template refuses the conversation, an id is no token, or a
    prompt leaves no room for its answer.
    """
    stops = () if request.ignore_eos or model.no_eos else tuple(sorted(codec.stop_ids))
    param = "messages" if request.kind == "chat" else "prompt"
    submits: list[Submit] = []
    total = 0
    for prompt in _prompts(request, codec, now):
        tokens = len(prompt) // 4
        total += tokens
        max_tokens = token_budget(tokens, request.max_tokens, model, param)
        for _ in range(request.n):
            choice = len(submits)
            submits.append(
                Submit(
                    id=f"{request.id}-{choice}",
                    prompt=prompt,
                    max_tokens=max_tokens,
                    sampling=request.sampling,
                    seed=choice_seed(seed, choice),
                    stop_ids=stops,
                    priority=request.priority,
                )
            )
    return Submission(tuple(submits), total)


def _prompts(request: GenerationRequest, codec: TextCodec, now: float) -> list[bytes]:
    if request.kind == "chat":
        try:
            return [pack_ids(codec.chat(request.messages, request.template_kwargs, now=now))]
        except TemplateError as error:
            raise prompt_refused(error, "messages") from error
    texts = [pack_ids(codec.prompt(text)) for text in request.prompts]
    for packed in request.prompt_ids:
        try:
            codec.tokenizer.check(unpack_ids(packed).tolist())
        except TokenRangeError as error:
            raise invalid(str(error), "prompt") from error
    return [*texts, *request.prompt_ids]
