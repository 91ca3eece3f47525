"""What a grammar lets a model write, the router reads as the grammar means it, in every format.

The model here says the most awkward things it may: markers spelled out in plain tokens, in its
reasoning, in the values of a call, in the strings of JSON. Tokens that the mask forbids are left
out; whatever is allowed must come back from the field it was said in.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.grammar.answer import Wanted, answer_grammar
from dgpp.grammar.matcher import Grammars, Matcher
from dgpp.grammar.vocabulary import vocabulary
from dgpp.sched.verdict import Finish
from dgpp.text.calls.format import FORMATS, MARKERS, MIMO, QWEN, ToolFormat
from dgpp.text.calls.values import ToolSchema
from dgpp.text.delta import ArgumentsPart, CallPart, Delta
from dgpp.text.dialect import Dialect, Thinking
from dgpp.text.messages import Tool
from dgpp.text.output import OutputOptions, OutputStream
from dgpp.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"
TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {"path": TEXT, "text": TEXT, "list": {"type": "array", "items": TEXT}},
    "required": ["path", "text"],
}
NAME = "write_file"
TOOL = Tool(NAME, json.dumps({"name": NAME, "parameters": SCHEMA}), strict=True)
JSON = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}

every = pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
controls = pytest.mark.parametrize("spelled", [False, True], ids=["control", "plain"])
MARKS = {"DSML", *MARKERS}


def pieces(form: ToolFormat) -> st.SearchStrategy[list[str]]:
    call = form.block([(NAME, {"path": "p", "text": "t"})])
    closing = form.closing.decode()
    parts = [
        *("<think>", "</think>", " ", "\n", "a", "é", "<", "</", "{", '"', "\\"),
        *(form.opening.decode(), closing, *form.follow, closing + form.follow[1], call, call[:20]),
    ]
    return st.lists(st.sampled_from(parts), max_size=6)


@cache
def tokenizer(spelled: bool) -> tuple[Tokenizer, Grammars]:
    """One whose vocabulary has no marker but as text, and one that has all as control tokens."""
    spec = json.loads((TINY / "tokenizer.json").read_text())
    kept = [token for token in spec["added_tokens"] if token["content"] not in MARKERS]
    if not spelled:
        for number, text in enumerate(sorted(MARKERS - {"<function=", "</function>"}), 480):
            added = {**spec["added_tokens"][0], "id": number, "content": text, "special": False}
            kept.append(added)
    spec["added_tokens"] = kept
    found = Tokenizer(spec, 512)
    return found, Grammars(vocabulary(found, [474]))


def dialect(form: ToolFormat) -> Dialect:
    gap = b"\n\n" if form is QWEN or form.again is not None else b""
    thinking = Thinking(trimmed=form is QWEN, after=b"\n\n" if form is QWEN else b"")
    return Dialect(thinking, form, trimmed=form is not MIMO and form.again is None, gap=gap)


class Speaker:
    """Says texts as far as the grammar allows, in plain tokens or with the control tokens."""

    def __init__(self, wanted: Wanted, form: ToolFormat, spelled: bool, reasoning: bool) -> None:
        self.spelled = spelled
        self.tokenizer, grammars = tokenizer(spelled)
        grammar = answer_grammar(wanted, dialect(form), self.tokenizer, reasoning=reasoning)
        self.matcher: Matcher = grammars.compile(grammar)
        self.ids: list[int] = []
        self.options = OutputOptions(
            dialect=dialect(form),
            reasoning=reasoning,
            tools={NAME: ToolSchema(NAME, SCHEMA)} if wanted.tools else {},
            json=wanted.schema is not None,
            held=True,
        )

    def may_say(self, texts: list[str], *ends: str) -> str:
        """What of `texts` was allowed. Where a marker is plain text, saying it is what `ends` this
        field: that is left for later."""
        said = b""
        for token in [t for text in texts for t in self.tokenizer.encode(text)]:
            more = said + self.tokenizer.bytes.raw(token)
            if any(self.is_plain(end) and end.encode() in more for end in ends):
                continue
            if self.matcher._matcher.try_consume_tokens([token]):
                self.ids.append(token)
                said = more
        return said.decode("utf-8", "replace")

    def is_plain(self, marker: str) -> bool:
        """Whether `marker` is no token of its own."""
        return self.spelled or len(self.tokenizer.encode(marker.strip(), controls=True)) > 1

    def must_say(self, text: str) -> None:
        ids = self.tokenizer.encode(text, controls=True)
        assert self.matcher._matcher.try_consume_tokens(ids) == len(ids), text
        self.ids += ids

    def read(self) -> Delta:
        """The answer in one step, which is also what single tokens join to."""
        assert self.matcher.is_accepting
        ids = [*self.ids, 474]
        stream = OutputStream(self.tokenizer.bytes, "r", 0, self.options)
        whole = stream.feed(ids, Finish.EOS)
        assert whole is not None
        stream = OutputStream(self.tokenizer.bytes, "r", 0, self.options)
        ends = [Finish.NONE] * len(self.ids) + [Finish.EOS]
        fed = [stream.feed([token], end) for token, end in zip(ids, ends, strict=True)]
        steps = [delta for delta in fed if delta is not None]
        assert "".join(delta.text for delta in steps) == whole.text
        assert "".join(delta.reasoning for delta in steps) == whole.reasoning
        assert arguments(*steps) == arguments(whole)
        assert steps[-1].finish == whole.finish
        return whole


def arguments(*deltas: Delta) -> str:
    parts = (part for delta in deltas for part in delta.parts)
    return "".join(part.text for part in parts if isinstance(part, ArgumentsPart))


def stripped(text: str, form: ToolFormat) -> str:
    return text.strip(" \t\r\n") if form is QWEN else text


def call_of(delta: Delta) -> list[tuple[str, object]]:
    names = [part.name for part in delta.parts if isinstance(part, CallPart)]
    told = [part.text for part in delta.parts if isinstance(part, ArgumentsPart)]
    return list(zip(names, map(json.loads, told), strict=True))


@every
@controls
@settings(max_examples=8)
@given(st.data())
def test_reasoning_and_values_of_forced_calls(form, spelled, data):
    hostile = pieces(form)
    wanted = Wanted(tools=(TOOL,), choice="required")
    speaker = Speaker(wanted, form, spelled, reasoning=True)
    thought = speaker.may_say(data.draw(hostile), "</think>")
    path, text = "\ue000", "\ue001"
    block = form.block([(NAME, {"path": path, "text": text})])
    head, between, tail = block.replace(text, path).split(path)
    speaker.must_say("</think>" + dialect(form).thinking.after.decode() + head)
    closing = between[: between.index(form.follow[0])].rstrip()
    first = speaker.may_say(data.draw(hostile), closing)
    speaker.must_say(between)
    second = speaker.may_say(data.draw(hostile), closing)
    speaker.must_say(tail)
    delta = speaker.read()
    assert delta.reasoning == stripped(thought, form)
    assert call_of(delta) == [(NAME, {"path": first, "text": second})]
    assert (delta.text, delta.finish) == ("", "tool_calls")


@every
@controls
@settings(max_examples=8)
@given(st.data())
def test_strings_inside_the_json_of_an_argument(form, spelled, data):
    speaker = Speaker(Wanted(tools=(TOOL,), choice="required"), form, spelled, reasoning=True)
    block = form.block([(NAME, {"path": "p", "text": "t", "list": ["\ue000"]})])
    head, tail = block.split("\ue000")
    speaker.must_say("</think>" + dialect(form).thinking.after.decode() + head)
    pieces_said = json.dumps("".join(data.draw(pieces(form))), ensure_ascii=False)[1:-1]
    said = speaker.may_say([pieces_said])
    speaker.must_say(tail)
    expected = {"path": "p", "text": "t", "list": [json.loads(f'"{said}"')]}
    assert call_of(speaker.read()) == [(NAME, expected)]


@every
@controls
@settings(max_examples=8)
@given(st.data())
def test_text_beside_strict_tools(form, spelled, data):
    """Whatever is said in text is text: only the marker itself begins a call."""
    speaker = Speaker(Wanted(tools=(TOOL,)), form, spelled, reasoning=False)
    said = speaker.may_say(data.draw(pieces(form)), form.opening.decode(), "<think>")
    delta = speaker.read()
    assert (delta.text, delta.reasoning, delta.finish) == (said, "", "stop")


@every
@controls
@settings(max_examples=8)
@given(st.data(), st.booleans())
def test_strings_of_json_where_calls_are_offered(form, spelled, data, strict):
    wanted = Wanted(schema=JSON, strict=strict, tools=(TOOL,))
    speaker = Speaker(wanted, form, spelled, reasoning=True)
    thought = speaker.may_say(data.draw(pieces(form)), "</think>")
    speaker.must_say("</think>" + dialect(form).thinking.after.decode() + '{"a":"')
    said = speaker.may_say([json.dumps("".join(data.draw(pieces(form))), ensure_ascii=False)[1:-1]])
    speaker.must_say('"}')
    delta = speaker.read()
    assert delta.reasoning == stripped(thought, form)
    assert delta.text == '{"a":"' + said + '"}'
    assert delta.finish == "stop"
