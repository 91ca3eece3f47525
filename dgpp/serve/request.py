"""The one request type behind all front ends."""

from __future__ import annotations

from typing import Literal

import msgspec

from dgpp.sample.params import SamplingParams
from dgpp.text.messages import Message, Tool

Kind = Literal["chat", "completion", "messages", "responses"]


class JsonAnswer(msgspec.Struct, frozen=True):
    """The answer is JSON: `schema` is the text of its schema, "{}" for any object. `path` is where
    the client asked for it."""

    schema: str
    path: str
    strict: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A validated request for text.

    `kind` is the API it came by. A `chat`, and Anthropic's `messages`, has `messages` (and the
    template's switches in `template_kwargs`), a `completion` has `prompts` (texts) or
    `prompt_ids` (each token ids packed as little-endian u32, as
    `dgpp.sched.request.pack_ids` does), never both.
    `tools` are shown to the model; where they are `callable`, its calls are read as such;
    `tool_paths` is where the schema or grammar of each stands in the body.
    With `must_call` the answer is a call, with `only` of one of these; `parallel` allows several.
    `named`: the client named the tool. `answer`: what JSON the answer must be, None for text.
    `echo`: members of the body, as JSON, that the answer repeats.
    `max_tokens` None means the server's default, cut to the room the prompt leaves;
    `max_tokens_field` is the name that the client gave it by. `n` is the choices per prompt; choice
    `p * n + k` is the k-th of prompt p. `repeats_prompt`: a completion's text begins with the
    prompt, and logprobs are told of it too. `seed` None means a random one. `timeout_s` is how long
    the whole answer may take. `ping_interval` is in seconds, -1 for no keep-alive comments.
    `ignored` counts the unknown fields the client sent, for a log line.
    """

    id: str
    kind: Kind
    model: str
    messages: tuple[Message, ...] = ()
    prompts: tuple[str, ...] = ()
    prompt_ids: tuple[bytes, ...] = ()
    template_kwargs: dict[str, bool | str] = {}
    tools: tuple[Tool, ...] = ()
    tool_paths: tuple[str, ...] = ()
    callable: bool = False
    must_call: bool = False
    only: tuple[str, ...] = ()
    parallel: bool = True
    named: bool = False
    answer: JsonAnswer | None = None
    echo: str = "{}"
    repeats_prompt: bool = False
    n: int = 1
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    sampling: SamplingParams = SamplingParams()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    include_obfuscation: bool = False
    ping_interval: int = 30
    ignore_eos: bool = False
    prefix_cache: bool = True
    priority: int = 0
    timeout_s: float | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    ignored: int = 0

    @property
    def prompt_field(self) -> str:
        """The field that holds the prompt."""
        return _PROMPT_FIELDS[self.kind]

    @property
    def scored(self) -> int:
        """How many best tokens are told beside each of the prompt's own, −1 where nothing is."""
        return max(self.sampling.logprobs - 1, -1) if self.repeats_prompt else -1

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model may call."""
        if not self.callable:
            return ()
        return tuple(tool for tool in self.tools if not self.only or tool.name in self.only)

    @property
    def choices(self) -> int:
        """How many texts are asked for in all."""
        return self.n * max(1, len(self.prompts) + len(self.prompt_ids))


_PROMPT_FIELDS: dict[Kind, str] = {
    "chat": "messages",
    "completion": "prompt",
    "messages": "messages",
    "responses": "input",
}


def choice_seed(seed: int, choice: int) -> int:
    """The generator key of `choice`, unsigned 64 bits, for a signed or unsigned `seed`."""
    return (seed + choice) % (1 << 64)
