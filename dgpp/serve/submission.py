"""A request to the submissions of its choices: rendered, encoded, bounded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dgpp.grammar.matcher import Grammars
from dgpp.sched.request import Submit, pack_ids, unpack_ids
from dgpp.serve import limits
from dgpp.serve.budget import prompt_too_long, token_budget
from dgpp.serve.constraint import constrains, grammar_of
from dgpp.serve.errors import invalid, prompt_refused
from dgpp.serve.request import GenerationRequest, choice_seed
from dgpp.serve.served import ServedModel
from dgpp.text.calls.values import ToolSchema
from dgpp.text.codec import TextCodec
from dgpp.text.errors import NoTokenizerError, PromptTooLongError, TemplateError, TokenRangeError
from dgpp.text.messages import Tool
from dgpp.text.output import OutputOptions
from dgpp.text.roles import role_boundaries


class Submission(NamedTuple):
    """The choices of one request, `<id>-<k>` in order, as many for each of its packed prompts."""

    submits: tuple[Submit, ...]
    prompts: tuple[bytes, ...]
    output: OutputOptions

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        return sum(map(len, self.prompts)) // 4


def submission(
    request: GenerationRequest,
    seed: int,
    codec: TextCodec,
    model: ServedModel,
    now: float,
    grammars: Callable[[], Grammars] | None = None,
) -> Submission:
    """What the scheduler is asked for. `now` is in Unix seconds, for templates that tell the date.
    `grammars` compiles those of constrained answers; it is asked for with the first of them.

    Raises a 400 ApiError where the template refuses the conversation, an id is no token, a
    schema cannot be enforced, or a prompt leaves no room for its answer. The choices of a prompt
    share its bytes.
    """
    submits: list[Submit] = []
    prompts = prompts_of(request, codec, model, now)
    reasoning = _opens_reasoning(request, codec, prompts)
    grammar = ""
    if constrains(request):
        if grammars is None:
            at = "tools" if request.answer is None else request.answer.path
            raise invalid("this model has no grammars", at)
        grammar = grammar_of(request, codec, grammars(), reasoning=reasoning)
    # What follows a grammar ends where the grammar does.
    endless = (request.ignore_eos or model.no_eos) and not grammar
    stops = () if endless else tuple(sorted(codec.stop_ids))
    _check_scored(request, prompts)
    for prompt in prompts:
        max_tokens = token_budget(len(prompt) // 4, request, model)
        if request.sampling.min_tokens > max_tokens:
            least = request.sampling.min_tokens
            message = f"min_tokens is {least}, the answer has {max_tokens} tokens at most"
            raise invalid(message, "min_tokens")
        boundaries = b""
        if model.cut_tokens:
            ids = unpack_ids(prompt)
            boundaries = role_boundaries(ids, codec.role_markers, model.cut_tokens)
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
                    grammar=grammar,
                    boundaries=boundaries,
                    no_cache=not request.prefix_cache,
                    scored=request.scored,
                )
            )
    output = _output(request, codec, model, reasoning=reasoning, held=bool(grammar))
    return Submission(tuple(submits), tuple(prompts), output)


def _check_scored(request: GenerationRequest, prompts: list[bytes]) -> None:
    tokens = request.n * sum(map(len, prompts)) // 4
    if request.scored >= 0 and tokens > limits.SCORED_TOKENS:
        message = f"echo with logprobs: {tokens} prompt tokens, the limit is {limits.SCORED_TOKENS}"
        raise invalid(message, "prompt")


def _opens_reasoning(request: GenerationRequest, codec: TextCodec, prompts: list[bytes]) -> bool:
    """Whether the answer begins inside the think tags."""
    if request.kind == "completion":
        return False
    return codec.opens_reasoning(unpack_ids(prompts[0]).tolist())


def _output(
    request: GenerationRequest,
    codec: TextCodec,
    model: ServedModel,
    *,
    reasoning: bool,
    held: bool,
) -> OutputOptions:
    """How the answer is to be read: a raw completion has no reasoning and no calls."""
    if request.kind == "completion":
        return OutputOptions(
            stop=request.stop,
            repeats_prompt=request.repeats_prompt,
            scored=request.scored >= 0,
        )
    dialect = codec.dialect
    if model.reasoning_in_content:
        dialect = replace(dialect, thinking=None)
    return OutputOptions(
        stop=request.stop,
        dialect=dialect,
        reasoning=reasoning and dialect.thinking is not None,
        tools={tool.name: _schema(tool) for tool in request.offered},
        forced=request.named,
        whole_arguments=model.whole_arguments,
        json=request.answer is not None,
        held=held,
    )


def _schema(tool: Tool) -> ToolSchema:
    parameters = json.loads(tool.definition).get("parameters")
    return ToolSchema(tool.name, parameters, custom=tool.custom)


def prompts_of(
    request: GenerationRequest, codec: TextCodec, model: ServedModel, now: float
) -> list[bytes]:
    """The packed prompts of `request`. Raises ApiError as `submission` does."""
    most = model.request_limit
    param = request.prompt_field
    if request.tools and codec.dialect.calls is None:
        message = "this model's chat template has no tool calls"
        raise invalid(message, "tools", "tools_unsupported")
    try:
        if request.kind != "completion":
            kwargs = request.template_kwargs
            ids = codec.chat(request.messages, kwargs, tools=request.tools, now=now, most=most)
            return [pack_ids(ids)]
        texts = [pack_ids(codec.prompt(text, most=most)) for text in request.prompts]
    except TemplateError as error:
        raise prompt_refused(error, param) from error
    except NoTokenizerError as error:
        raise prompt_refused(error, param) from error
    except PromptTooLongError as error:
        raise prompt_too_long(str(error), request, model) from error
    for packed in request.prompt_ids:
        try:
            codec.tokenizer.check(unpack_ids(packed).tolist())
        except TokenRangeError as error:
            raise invalid(str(error), "prompt") from error
    return [*texts, *request.prompt_ids]
