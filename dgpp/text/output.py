"""One choice's tokens to its answer, the same code for streams and whole answers."""

from __future__ import annotations

import codecs
import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dgpp.sched.verdict import Finish
from dgpp.text.bytelevel import TokenBytes
from dgpp.text.calls.reader import Arguments, CallBegun, CallEnded
from dgpp.text.calls.values import ToolSchema
from dgpp.text.delta import (
    ArgumentsPart,
    CallPart,
    Delta,
    Part,
    ReasoningPart,
    RowLogprobs,
    TextPart,
    TokenLogprob,
)
from dgpp.text.dialect import PLAIN, Dialect
from dgpp.text.repeated import RepeatedPrompt
from dgpp.text.router import Content, Reasoning, Routed, Router
from dgpp.text.visible import VisibleTokens

REASONS = {
    Finish.EOS: "stop",
    Finish.STOP: "stop",
    Finish.CANCELLED: "stop",
    Finish.LENGTH: "length",
    Finish.POOL_EXHAUSTED: "length",
}
"""What a client reads for each way a request ends."""

ENDED_BY_MODEL = (Finish.EOS, Finish.STOP)

_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a request asks of its output.

    `reasoning`    the prompt ends inside the think tags
    `tools`        the tools that may be called, by name; none means that calls are text
    `forced`       one tool was named by the client: its call is a plain stop (OpenAI's rule)
    `whole_arguments`  a call's arguments are told in one piece, when they are complete
    `repeats_prompt`   the text begins with the prompt
    `scored`           that prompt's logprobs are told, and those of every token of the answer,
                       hidden ones and the end token included
    `json`         the answer is JSON, or calls
    `held`         a grammar holds the answer
    """

    stop: tuple[str, ...] = ()
    dialect: Dialect = PLAIN
    reasoning: bool = False
    tools: Mapping[str, ToolSchema] = field(default_factory=dict)
    forced: bool = False
    whole_arguments: bool = False
    repeats_prompt: bool = False
    scored: bool = False
    json: bool = False
    held: bool = False


class OutputStream:
    """Turns the tokens of one choice into deltas.

    However the tokens are cut into steps, the deltas join to the same reasoning, text, calls,
    logprobs, finish and counts. What was sent is never taken back: what may still become a stop
    string or a marker and the bytes of an unfinished character wait, and come out when the choice
    ends.

    `completion_tokens` counts tokens up to the end token, or the one that completed a stop
    string. `stop_found` is set where a stop string ended the text: the engine does not know yet.
    `finished` is set after the last delta; whatever is fed then is dropped. `cached_tokens` and
    `decoded_tokens` are passed on as they are set. `prompt` are the prompt's ids, wanted where the
    answer repeats it.
    """

    def __init__(
        self,
        table: TokenBytes,
        id: str,  # noqa: A002
        choice: int,
        options: OutputOptions | Sequence[str] = (),
        prompt: Sequence[int] = (),
    ) -> None:
        if not isinstance(options, OutputOptions):
            options = OutputOptions(stop=tuple(options))
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.decoded_tokens = 0
        self.stop_found = False
        self.finished = False
        self._table = table
        self._id = id
        self._choice = choice
        self._options = options
        self._router = Router(
            options.dialect,
            tools=options.tools,
            stop=tuple(text.encode() for text in options.stop),
            reasoning=options.reasoning,
            json=options.json,
            held=options.held,
        )
        self._text = _decoder("replace")
        self._reasoning = _decoder("replace")
        self._fed = 0
        self._visible = VisibleTokens(table, every=options.scored)
        self._prompt: RepeatedPrompt | None = None
        if options.repeats_prompt:
            self._prompt = RepeatedPrompt(table, prompt, scored=options.scored)
        self._call = -1
        self._kept: list[str] = []
        self._reasoned = False
        self._starts: list[int] = []

    def feed(
        self,
        tokens: Sequence[int],
        finish: Finish = Finish.NONE,
        logprobs: Sequence[RowLogprobs] = (),
    ) -> Delta | None:
        """The news that `tokens` bring, None if they bring nothing to show.

        `finish` says that the last of `tokens` is the choice's last; with EOS it is an end token
        and not shown. `logprobs` is empty or parallel to `tokens`.
        """
        if self.finished:
            return None
        shown = tokens[:-1] if finish is Finish.EOS else tokens
        pieces = [self._table.raw(token) for token in shown]
        router = self._router
        routed = router.push(b"".join(pieces))
        if router.stop_end is not None:
            tokens = tokens[: self._tokens_through(router.stop_end, pieces)]
            finish = Finish.STOP
            self.stop_found = True
        elif finish is not Finish.NONE:
            routed += router.finish(whole=finish in ENDED_BY_MODEL)
        # The end token has no bytes to be text; whoever hears of every token hears of it.
        heard = [*pieces, b""] if len(shown) < len(tokens) else pieces
        self._visible.add(self._fed, tokens, heard, logprobs)
        self._count_reasoning(pieces, len(tokens))
        self._fed += sum(map(len, pieces))
        self.completion_tokens += len(tokens)
        self.finished = finish is not Finish.NONE
        before, entries = self._before()
        parts = self._parts(routed, before)
        entries += self._visible.due(router.resolved, finished=self.finished)
        if not (parts or entries or self.finished):
            return None
        return Delta(
            self._id,
            self._choice,
            self.completion_tokens,
            tuple(parts),
            entries,
            self._reason(finish),
            self.reasoning_tokens,
            router.stopped_by.decode() if self.stop_found else None,
            self.cached_tokens,
            self.decoded_tokens,
        )

    def read(self, rows: Sequence[RowLogprobs]) -> Delta:
        """The news that the next tokens of a repeated prompt bring, which `rows` speak of."""
        assert self._prompt is not None
        data, entries = self._prompt.scored(rows)
        text = self._text.decode(data)
        parts = (TextPart(text),) if text else ()
        return Delta(self._id, self._choice, 0, parts, tuple(entries))

    def _before(self) -> tuple[str, tuple[TokenLogprob, ...]]:
        """What is left to tell of a repeated prompt, once the answer begins."""
        prompt, self._prompt = self._prompt, None
        if prompt is None:
            return "", ()
        data, entries = prompt.rest()
        return self._text.decode(data), tuple(entries)

    def _reason(self, finish: Finish) -> str | None:
        reason = REASONS.get(finish)
        called = self._router.calls > 0 and not self._options.forced
        return "tool_calls" if called and reason == "stop" else reason

    def _count_reasoning(self, pieces: list[bytes], tokens: int) -> None:
        """The reasoning's tokens are those that begin before its end; all while it is open."""
        router = self._router
        none = router.settled and not router.in_reasoning and router.reasoning_end is None
        if self._reasoned or none:
            return
        at = self._fed
        for piece in pieces:
            self._starts.append(at)
            at += len(piece)
        if router.reasoning_end is not None:
            self.reasoning_tokens = bisect_left(self._starts, router.reasoning_end)
            self._reasoned = True
            self._starts.clear()
        elif router.in_reasoning:
            self.reasoning_tokens = self.completion_tokens + tokens

    def _tokens_through(self, end: int, pieces: list[bytes]) -> int:
        """How many tokens of this step reach byte `end` of the stream."""
        at = self._fed
        for count, piece in enumerate(pieces, 1):
            at += len(piece)
            if at >= end:
                return count
        return len(pieces)

    def _parts(self, routed: list[Routed], before: str) -> list[Part]:
        """Neighbours of one kind joined; at the end, what an unfinished character left."""
        text: list[Part] = []
        _join(text, TextPart(before))
        for event in routed:
            match event:
                case Content(start, data):
                    self._visible.show(start, len(data))
                    _join(text, TextPart(self._text.decode(data)))
                case Reasoning(data):
                    _join(text, ReasoningPart(self._reasoning.decode(data)))
                case CallBegun(name, custom):
                    self._call += 1
                    text.append(CallPart(self._call, self._call_id(), name, custom))
                case Arguments(piece) if self._options.whole_arguments:
                    self._kept.append(piece)
                case Arguments(piece):
                    _join(text, ArgumentsPart(self._call, piece))
                case CallEnded() if self._kept:
                    _join(text, ArgumentsPart(self._call, "".join(self._kept)))
                    self._kept.clear()
        if self.finished:
            _join(text, ReasoningPart(self._reasoning.decode(b"", True)))
            _join(text, TextPart(self._text.decode(b"", True)))
        return text

    def _call_id(self) -> str:
        name = f"{self._id}\0{self._choice}\0{self._call}".encode()
        return "call_" + hashlib.blake2b(name, digest_size=8).hexdigest()


def _join(parts: list[Part], part: TextPart | ReasoningPart | ArgumentsPart) -> None:
    """Append `part`, or lengthen the last one where it is of the same kind and call."""
    if not part.text:
        return
    last = parts[-1] if parts else None
    match last, part:
        case (TextPart(), TextPart()):
            parts[-1] = TextPart(last.text + part.text)
        case (ReasoningPart(), ReasoningPart()):
            parts[-1] = ReasoningPart(last.text + part.text)
        case (ArgumentsPart(), ArgumentsPart()) if last.index == part.index:
            parts[-1] = ArgumentsPart(part.index, last.text + part.text)
        case _:
            parts.append(part)
