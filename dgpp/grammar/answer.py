"""What an answer may look like: reasoning, then text, JSON or calls, as one grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from dgpp.grammar.calls import CallWriter
from dgpp.grammar.lark import ANYTHING, COMPACT, LENIENT, LarkWriter, alternatives
from dgpp.text.dialect import Dialect
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
    start = [_reasoning(writer, dialect, open_already=reasoning)]
    bodies: list[str] = []
    if wanted.schema is not None:
        options = COMPACT if wanted.strict else LENIENT
        bodies.append(writer.schema(_object(wanted.schema), options))
    if wanted.tools and wanted.choice != "none":
        assert dialect.calls is not None
        calls = CallWriter(writer, dialect.calls)
        if wanted.choice == "required":
            bodies = [calls.calls(wanted.tools, several=wanted.parallel)]
        elif bodies:
            bodies.append(calls.calls(wanted.tools, several=wanted.parallel))
        else:
            bodies = _text_then_calls(writer, dialect.calls.opening.decode(), calls, wanted)
    start.append(alternatives(bodies))
    return writer.source(" ".join(part for part in start if part))


def _object(schema: Any) -> Any:
    return {"type": "object"} if schema == {} else schema


def _reasoning(writer: LarkWriter, dialect: Dialect, *, open_already: bool) -> str:
    """The reasoning and what the template puts behind it, as far as the model may write it."""
    thinking = dialect.thinking
    if thinking is None:
        return ""
    body = writer.text_until("</think>")
    after = json.dumps(thinking.after.decode()) if thinking.after else ""
    behind = f" ({after})?" if after else ""
    if open_already:
        return body + behind
    return f"({writer.literal('<think>')} {body}{behind})?"


def _text_then_calls(
    writer: LarkWriter, marker: str, calls: CallWriter, wanted: Wanted
) -> list[str]:
    """Text without the marker, and at its end calls."""
    several = wanted.parallel
    if writer.begins_with_control(marker):
        return [f"{writer.rule(ANYTHING)} ({calls.calls(wanted.tools, several=several)})?"]
    opened = calls.calls(wanted.tools, several=several, opened=True)
    return [writer.rule(_without(marker)), f"{writer.text_until(marker)} {opened}"]


def _without(marker: str) -> str:
    """A pattern for text in which `marker`, which begins with an angle bracket, does not occur."""
    rest = [_escaped(char) for char in marker[1:]]
    branches = ["[^<]"]
    for size in range(len(rest)):
        branches.append("<" + "".join(rest[:size]) + f"[^{rest[size]}<]")
    return "/(" + "|".join(branches).replace("/", r"\/") + r")*/"


def _escaped(char: str) -> str:
    return "\\" + char if char in r"\.+*?()|[]{}^$/-#&~" else char
