"""What the output pipeline takes and gives: logprobs of a row in, deltas of a choice out."""

from __future__ import annotations

import msgspec


class RowLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities of one sampled token: its own and its best alternatives'.

    `ids` and `values` are parallel, in descending order, at most 20; `ids` normally holds the
    chosen token too.
    """

    logprob: float
    ids: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One alternative: its text, its raw bytes and its log probability."""

    token: str
    raw: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One visible token. `raw` are the bytes it contributes: over a choice they join to the
    UTF-8 of its content, where the content has no replacement character."""

    token: str
    raw: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()


class TextPart(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A piece of the visible answer."""

    text: str


class ReasoningPart(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A piece of the reasoning before the answer."""

    text: str


class CallPart(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Tool call `index` begins; its name is complete."""

    index: int
    id: str
    name: str
    custom: bool = False


class ArgumentsPart(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The next piece of call `index`'s arguments: JSON text, or a custom tool's plain input."""

    index: int
    text: str


Part = TextPart | ReasoningPart | CallPart | ArgumentsPart
"""The kinds of output, a tagged union: a new kind is a new member with a tag of its own."""


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """News of one choice. Concatenated over a choice, deltas are the whole answer.

    `id` is the request's, `choice` the index of the choice. `parts` stand in the order in which
    the model wrote them. `completion_tokens` counts all tokens of the choice so far, hidden ones
    and the end token included. `finish` is set on the last delta of a choice and on no other:
    `stop`, `length` or `tool_calls`. `reasoning_tokens` counts those up to the end of the
    reasoning. `stop` is the stop string that ended the choice, when one did. `cached_tokens` of the
    prompt came from the prefix cache, `decoded_tokens` of them as decode wrote them.
    """

    id: str
    choice: int
    completion_tokens: int
    parts: tuple[Part, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    reasoning_tokens: int = 0
    stop: str | None = None
    cached_tokens: int = 0
    decoded_tokens: int = 0

    @property
    def text(self) -> str:
        """The visible answer's share of this delta."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def reasoning(self) -> str:
        """The reasoning's share of this delta."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))
