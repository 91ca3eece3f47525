"""What an answer may look like: reasoning, then text, JSON or calls, as one grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from dgpp.grammar.calls import CallWriter
from dgpp.grammar.lark import COMPACT, LENIENT, LarkWriter, alternatives, containing
from dgpp.text.dialect import THINK_OPEN, Dialect
from dgpp.text.messages import Tool
from dgpp.text.tokenizer import Tokenizer

Choice = Literal["auto", "required", "none"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of its answer.

    `schema`    JSON of this schema; None for no JSON, {} for any object
    `strict`    every keyword of the schema counts; else unknown ones are passed over
    `tools`     tools that may be called, `choice` whether they must; `parallel` several of them
    """

    schema: Any = None
    strict: bool = False
    tools: tuple[Tool, ...] = ()
    choice: Choice = "auto"
    parallel: bool = True

    @property
    def constrains(self) -> bool:
        """Whether the answer has to be held to anything."""
        forced = bool(self.tools) and (self.choice == "required" or not self.parallel)
        strict = any(tool.strict or tool.grammar is not None for tool in self.tools)
        return self.schema is not None or forced or strict


def answer_grammar(
    wanted: Wanted, dialect: Dialect, tokenizer: Tokenizer, *, reasoning: bool
) -> str:
    """The grammar of the whole answer; `reasoning` says that the prompt leaves the tag open."""
    writer = LarkWriter(tokenizer)
    callable_tools = wanted.tools if wanted.choice != "none" else ()
    start = [_reasoning(writer, dialect, open_already=reasoning, tools=bool(callable_tools))]
    bodies: list[str] = []
    if wanted.schema is not None:
        options = COMPACT if wanted.strict else LENIENT
        bodies.append(writer.schema(_object(wanted.schema), options))
    if callable_tools:
        assert dialect.calls is not None
        calls = CallWriter(writer, dialect.calls)
        if bodies or wanted.choice == "required":
            gap = f"({json.dumps(dialect.gap.decode())})? " if dialect.gap else ""
            called = gap + calls.calls(wanted.tools, several=wanted.parallel)
            bodies = [called] if wanted.choice == "required" else [*bodies, called]
        else:
            bodies = _text_then_calls(writer, dialect, calls, wanted, reasoned=reasoning)
    start.append(alternatives(bodies))
    return writer.source(" ".join(part for part in start if part))


def _object(schema: Any) -> Any:
    return {"type": "object"} if schema == {} else schema


def _reasoning(writer: LarkWriter, dialect: Dialect, *, open_already: bool, tools: bool) -> str:
    """The reasoning and what the template puts behind it, as far as the model may write it. What
    would end the reasoning for the router is not part of it (`Dialect.ends_reasoning`)."""
    thinking = dialect.thinking
    if thinking is None:
        return ""
    close, *others = (marker.decode() for marker in dialect.ends_reasoning(tools=tools))
    body = writer.text_until(close, never=map(containing, others))
    after = json.dumps(thinking.after.decode()) if thinking.after else ""
    behind = f" ({after})?" if after else ""
    if open_already:
        return body + behind
    return f"({writer.literal(THINK_OPEN.decode())} {body}{behind})?"


def _text_then_calls(
    writer: LarkWriter, dialect: Dialect, calls: CallWriter, wanted: Wanted, *, reasoned: bool
) -> list[str]:
    """Text without the marker, and at its end calls."""
    assert dialect.calls is not None
    marker = dialect.calls.opening.decode()
    never = [] if reasoned or dialect.thinking is None else [rf"\s*{THINK_OPEN.decode()}(?s:.*)"]
    opened = calls.calls(wanted.tools, several=wanted.parallel, opened=True)
    return [
        writer.text(never=[*never, containing(marker)]),
        f"{writer.text_until(marker, never=never)} {opened}",
    ]
