"""Every answer a grammar allows is read back as what it says, and nothing else is allowed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import vendors

from dgpp.grammar.answer import Wanted, answer_grammar
from dgpp.grammar.errors import GrammarError
from dgpp.grammar.matcher import Grammars
from dgpp.grammar.vocabulary import vocabulary
from dgpp.sched.verdict import Finish
from dgpp.text.calls.format import DSML_V4, DSML_V41, FORMATS, MIMO, QWEN, ToolFormat
from dgpp.text.calls.values import ToolSchema
from dgpp.text.delta import ArgumentsPart, CallPart
from dgpp.text.dialect import Dialect, Thinking
from dgpp.text.messages import Tool
from dgpp.text.output import OutputOptions, OutputStream
from dgpp.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"
every = pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "maximum": 9},
        "unit": {"enum": ["mm", "in"]},
        "where": {"$ref": "#/$defs/point"},
    },
    "required": ["city", "where"],
    "$defs": {"point": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
}


def tool(name: str = "get_weather", schema: Any = SCHEMA, **more: Any) -> Tool:
    return Tool(name, json.dumps({"name": name, "parameters": schema}), **more)


WEATHER = tool(strict=True)
NOW = tool("now", {"type": "object", "properties": {}})


@cache
def grammars() -> tuple[Tokenizer, Grammars]:
    tokenizer = Tokenizer.load(TINY)
    return tokenizer, Grammars(vocabulary(tokenizer, tokenizer.stop_ids))


def dialect(form: ToolFormat) -> Dialect:
    after = b"\n\n" if form is QWEN else b""
    return Dialect(Thinking(trimmed=form is QWEN, after=after), form, trimmed=form is not MIMO)


def allows(form: ToolFormat, wanted: Wanted, text: str, *, reasoning: bool = False) -> bool:
    tokenizer, found = grammars()
    grammar = answer_grammar(wanted, dialect(form), tokenizer, reasoning=reasoning)
    return walks(found, tokenizer, grammar, text)


def walks(found: Grammars, tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    matcher = found.compile(grammar)._matcher
    ids = tokenizer.encode(text, controls=True)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def written(form: ToolFormat, *calls: tuple[str, dict[str, Any]]) -> str:
    return form.block(calls)


GOOD = [
    {"city": "Köln", "where": []},
    {"city": "a </x> b\n", "days": 9, "unit": "in", "where": [1.5, -2]},
    {"city": "", "unit": "mm", "where": [1]},
]
BAD = [
    {"where": []},
    {"city": "x"},
    {"city": "x", "days": 10, "where": []},
    {"city": "x", "unit": "km", "where": []},
    {"city": "x", "where": [1, 2, 3]},
    {"city": "x", "where": ["1"]},
    {"city": "x", "where": [], "more": 1},
]


@every
def test_a_forced_call_keeps_to_its_schema(form):
    wanted = Wanted(tools=(WEATHER, NOW), choice="required")
    for arguments in GOOD:
        assert allows(form, wanted, written(form, ("get_weather", arguments))), arguments
    for arguments in BAD:
        assert not allows(form, wanted, written(form, ("get_weather", arguments))), arguments
    assert allows(form, wanted, written(form, ("now", {})))
    assert not allows(form, wanted, "no call")
    assert not allows(form, wanted, "")
    assert not allows(form, wanted, written(form, ("other", {})))


@every
def test_what_is_allowed_is_read_back(form):
    tokenizer, _ = grammars()
    for arguments in GOOD:
        text = written(form, ("get_weather", arguments), ("now", {}))
        assert allows(form, Wanted(tools=(WEATHER, NOW), choice="required"), text)
        tools = {"get_weather": ToolSchema("get_weather", SCHEMA), "now": ToolSchema("now", {})}
        stream = OutputStream(
            tokenizer.bytes, "r", 0, OutputOptions(dialect=dialect(form), tools=tools)
        )
        delta = stream.feed([*tokenizer.encode(text, controls=True), 0], Finish.EOS)
        assert delta is not None
        names = [part.name for part in delta.parts if isinstance(part, CallPart)]
        told = [part.text for part in delta.parts if isinstance(part, ArgumentsPart)]
        assert names == ["get_weather", "now"]
        assert [json.loads(text) for text in told] == [arguments, {}]


@every
def test_lengths_of_bare_strings_are_kept(form):
    schema = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 3}}}
    wanted = Wanted(tools=(tool("f", schema),), choice="required")
    assert allows(form, wanted, written(form, ("f", {"s": "é</"})))
    assert not allows(form, wanted, written(form, ("f", {"s": "abcd"})))


@every
@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        ({"pattern": "^a+$"}, ["a", "aaa"], ["", "ab", "ba"]),
        ({"pattern": "b{2}"}, ["bb", "abba\n"], ["b", "aba"]),
        ({"pattern": "^(x|y)/"}, ["x/", "y/z"], ["/", "ax/"]),
        ({"pattern": "[ab]", "maxLength": 2}, ["a", "xb"], ["x", "xxb"]),
        ({"format": "date"}, ["2024-02-29"], ["2024-13-01", "24-1-1"]),
        ({"format": "date-time"}, ["2024-02-29T23:59:59.5+02:00"], ["2024-02-29"]),
        ({"format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
        ({"format": "ipv4"}, ["255.0.10.1"], ["256.0.0.1", "1.1.1"]),
        ({"format": "email"}, ["a.b@c-d.org"], ["a@b", "@b.c"]),
    ],
)
def test_bare_strings_keep_to_patterns_and_formats(form, asked, good, bad):
    schema = {"type": "object", "properties": {"s": {"type": "string", **asked}}}
    wanted = Wanted(tools=(tool("f", schema, strict=True),), choice="required")
    for text in good:
        assert allows(form, wanted, written(form, ("f", {"s": text}))), text
    for text in bad:
        assert not allows(form, wanted, written(form, ("f", {"s": text}))), text


@pytest.mark.parametrize("asked", [{"pattern": "^a|b$"}, {"pattern": "a$b"}, {"format": "uri"}])
def test_what_bare_strings_cannot_keep_is_refused_where_strict(asked):
    schema = {"type": "object", "properties": {"s": {"type": "string", **asked}}}
    tokenizer, found = grammars()
    for strict in (True, False):
        wanted = Wanted(tools=(tool("f", schema, strict=strict),), choice="required")
        if strict:
            with pytest.raises(GrammarError, match=next(iter(asked))):
                answer_grammar(wanted, dialect(FORMATS[0]), tokenizer, reasoning=False)
        else:
            grammar = answer_grammar(wanted, dialect(FORMATS[0]), tokenizer, reasoning=False)
            found.compile(grammar)


@every
def test_one_call_where_parallel_ones_are_off(form):
    wanted = Wanted(tools=(NOW,), choice="required", parallel=False)
    assert allows(form, wanted, written(form, ("now", {})))
    assert not allows(form, wanted, written(form, ("now", {}), ("now", {})))


@every
def test_strict_tools_may_be_left_alone(form):
    wanted = Wanted(tools=(WEATHER,))
    assert wanted.constrains
    assert allows(form, wanted, "It is 3 < 4 <b>fine</b>.")
    assert allows(form, wanted, "Look: " + written(form, ("get_weather", GOOD[0])))
    assert not allows(form, wanted, "Look: " + written(form, ("get_weather", BAD[0])))


@every
def test_json_or_a_call(form):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = Wanted(schema=schema, strict=True, tools=(NOW,))
    assert allows(form, wanted, '{"a":1}')
    assert allows(form, wanted, written(form, ("now", {})))
    assert not allows(form, wanted, '{"a":"1"}')
    assert not allows(form, wanted, "text")


@every
@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_comes_first_and_is_free(form, opened):
    wanted = Wanted(schema={})
    after = "\n\n" if form is QWEN else ""
    text = ("" if opened else "<think>") + 'so {"a": ]</think>' + after + '{"a":[]}'
    assert allows(form, wanted, text, reasoning=opened)
    assert not allows(form, wanted, text[:-1], reasoning=opened)
    assert allows(form, wanted, "{}", reasoning=False)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (("regex", r"[ab/]{2,3}"), "ab/", "abc"),
        (("lark", 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/'), "1+22", "1+"),
    ],
)
@every
def test_custom_tools_keep_to_their_grammar(form, grammar, good, bad):
    custom = tool("calc", {}, custom=True, grammar=grammar)
    wanted = Wanted(tools=(custom,), choice="required")
    assert allows(form, wanted, written(form, ("calc", {"input": good})))
    assert not allows(form, wanted, written(form, ("calc", {"input": bad})))


@every
def test_a_name_given_twice_counts_once(form):
    """No grammar can keep a tool without declared arguments from it."""
    free = {"type": "object"}
    tokenizer, _ = grammars()
    first = form.write("f", {"a": "x", "b": "y"})
    text = form.block([("f", {"a": "x", "b": "y"})])
    text = text.replace(first, first.replace('"b"', '"a"').replace("=b>", "=a>"))
    text = text.replace("<arg_key>b<", "<arg_key>a<")
    assert allows(form, Wanted(tools=(tool("f", free),), choice="required"), text)
    options = OutputOptions(dialect=dialect(form), tools={"f": ToolSchema("f", free)}, held=True)
    stream = OutputStream(tokenizer.bytes, "r", 0, options)
    delta = stream.feed([*tokenizer.encode(text, controls=True), 0], Finish.EOS)
    assert delta is not None
    told = "".join(part.text for part in delta.parts if isinstance(part, ArgumentsPart))
    assert told == '{"a": "x"}'
    assert (delta.text, delta.finish) == ("", "tool_calls")


@pytest.mark.parametrize("name", ["a<b", "a\n", "", "x" * 257, "<think>"])
def test_names_of_arguments_that_no_call_can_hold_are_refused(name):
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    tokenizer, _ = grammars()
    wanted = Wanted(tools=(tool("f", schema),), choice="required")
    with pytest.raises(GrammarError, match="argument name"):
        answer_grammar(wanted, dialect(MIMO), tokenizer, reasoning=False)


def test_what_cannot_be_compiled_is_named():
    tokenizer, found = grammars()
    for schema, word in (
        ({"type": "foo"}, "foo"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ):
        wanted = Wanted(schema=schema, strict=True)
        grammar = answer_grammar(wanted, dialect(FORMATS[0]), tokenizer, reasoning=False)
        with pytest.raises(GrammarError, match=word):
            found.compile(grammar)
    lenient = answer_grammar(
        Wanted(schema={"type": "string", "not": {}}), dialect(MIMO), tokenizer, reasoning=False
    )
    found.compile(lenient)


def test_compact_json_leaves_no_room_to_dawdle():
    for text in ('{"a":  1}', '{ "a":1}', '{"a":1}\n', '{\n"a":1}', '{"a" :1}'):
        assert not allows(MIMO, Wanted(schema={}), text)
    for text in ('{"a":1,"b":[1,2]}', '{"a": 1, "b": [1, 2]}'):
        assert allows(MIMO, Wanted(schema={}), text)


@cache
def vendors_grammars(name):
    tokenizer = vendors.tokenizer(name)
    return tokenizer, Grammars(vocabulary(tokenizer, [max(tokenizer.controls.values())]))


@vendors.needed
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("glm", FORMATS[0]), ("qwen3.8", QWEN), ("mimo-v2.6", MIMO)),
        *(("deepseek-v4", DSML_V4), ("deepseek-v4", DSML_V41)),
    ],
)
def test_vendors_vocabularies(name, form):
    tokenizer, found = vendors_grammars(name)
    wanted = Wanted(tools=(WEATHER, NOW), choice="required")
    grammar = answer_grammar(wanted, dialect(form), tokenizer, reasoning=True)
    for arguments in GOOD:
        text = "hm</think>" + (dialect(form).thinking or Thinking(False, b"")).after.decode()
        text += written(form, ("get_weather", arguments), ("now", {}))
        assert walks(found, tokenizer, grammar, text), arguments
    for arguments in BAD:
        text = "</think>" + written(form, ("get_weather", arguments))
        assert not walks(found, tokenizer, grammar, text)
