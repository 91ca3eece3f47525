"""Structured answers: what a schema says holds, or the request is refused; nothing else breaks."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from dgpp.grammar.answer import Wanted, answer_grammar
from dgpp.grammar.guides import Guides
from dgpp.serve.chat import parse_chat
from dgpp.serve.errors import ApiError
from dgpp.serve.served import ServedModel
from dgpp.serve.submission import submission
from dgpp.text.codec import TextCodec
from dgpp.text.dialect import Dialect
from tests.known_reports.ledger import report
from tests.unit.grammar.test_answer_grammar import grammars, walks
from tests.unit.serve.test_tools import codec as codec


def grammar(schema: Any) -> str:
    tokenizer, _ = grammars()
    return answer_grammar(Wanted(schema=schema, strict=True), Dialect(), tokenizer, reasoning=False)


def allows(schema: Any, text: str) -> bool:
    tokenizer, found = grammars()
    return walks(found, tokenizer, grammar(schema), text)


def asked(model: ServedModel, codec: TextCodec, **fields: Any) -> None:
    """What the server does with the request before it runs. Raises ApiError."""
    body = {"model": "org/name", "messages": [{"role": "user", "content": "x"}], **fields}
    request = parse_chat(json.dumps(body).encode(), "id", model)
    submission(request, 1, codec, model, 0.0, lambda: grammars()[1])


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}


def refusal(model: ServedModel, codec: TextCodec, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        asked(model, codec, **fields)
    assert caught.value.status == 400
    assert caught.value.param
    return caught.value


def served_or_refused(model: ServedModel, codec: TextCodec, **fields: Any) -> None:
    """Either will do, as long as it is said by name."""
    refused = None
    try:
        asked(model, codec, **fields)
    except ApiError as error:
        refused = error
    assert refused is None or (refused.status, bool(refused.param)) == (400, True)


@report(49)
def test_white_space_has_an_end_whatever_the_schema(thread: str) -> None:
    schema = {"type": "object", "patternProperties": {"^a": {"type": "integer"}}}
    assert allows(schema, '{"ab": 1, "ac": 2}')
    for text in ('{ "ab":1}', '{"ab":  1}', '{"ab":1\n}', "{\n", '{"ab": 1,  "ac": 2}'):
        assert not allows(schema, text)


@report(51)
def test_a_reference_that_leads_nowhere_is_refused(
    model: ServedModel, codec: TextCodec, thread: str
) -> None:
    for schema in (
        {"$ref": "#/$defs/missing"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}, "$defs": {}},
        {"$ref": "http://127.0.0.1/x.json"},
    ):
        found = refusal(model, codec, response_format=form(schema))
        assert (found.param or "").startswith("response_format.json_schema.schema")


@report(52)
def test_an_enumeration_behind_a_reference_holds(thread: str) -> None:
    schema = {
        "type": "object",
        "properties": {"color": {"$ref": "#/$defs/color"}},
        "required": ["color"],
        "$defs": {"color": {"enum": ["red", "blue"]}},
    }
    assert allows(schema, '{"color": "red"}')
    assert not allows(schema, '{"color": "green"}')


class Place(BaseModel):
    name: str
    post_code: int | None = None


class Trip(BaseModel):
    start: Place
    stops: list[Place] = []
    note: str | None
    kind: dict[str, int | str] | None = None


@report(53)
def test_a_schema_as_pydantic_makes_it_holds(thread: str) -> None:
    schema = Trip.model_json_schema()
    trip = {"start": {"name": "K", "post_code": None}, "stops": [{"name": "B"}], "note": None}
    assert allows(schema, json.dumps(trip, separators=(",", ":")))
    assert Trip.model_validate(trip)
    for wrong in (trip | {"note": 3}, trip | {"start": {"post_code": 1}}, {"start": trip["start"]}):
        assert not allows(schema, json.dumps(wrong, separators=(",", ":")))


@report(55)
def test_a_long_bound_of_a_string_holds_or_is_refused(
    model: ServedModel, codec: TextCodec, thread: str
) -> None:
    inner = {"type": "array", "items": {"type": "string", "maxLength": 5000}}
    schema = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    assert allows(schema, json.dumps({"a": ["x" * 5000]}))
    assert not allows(schema, json.dumps({"a": ["x" * 5001]}))


@report(56)
@pytest.mark.parametrize("opening", ["(", "[", '{"a":'])
def test_nesting_without_end_is_refused_and_ends_nothing(
    model: ServedModel, codec: TextCodec, thread: str, opening: str
) -> None:
    text = opening * 60_000
    custom = {"type": "custom", "custom": {"name": "f", "format": {
        "type": "grammar", "grammar": {"syntax": "regex", "definition": text},
    }}}  # fmt: skip
    refusal(model, codec, tools=[custom])
    custom["custom"]["format"]["grammar"] = {"syntax": "lark", "definition": "start: " + text}
    refusal(model, codec, tools=[custom])
    with pytest.raises(ApiError):
        parse_chat(text.encode(), "id", model)
    deep: Any = {"type": "integer"}
    for _ in range(30):
        deep = {"type": "array", "items": deep}
    asked(model, codec, response_format=form(deep))


@report(57)
def test_patterns_and_types_that_are_none_end_nothing(
    model: ServedModel, codec: TextCodec, thread: str
) -> None:
    faults = [{"type": "foo"}, {"type": 7}, {"pattern": "("}, {"minLength": "a"}, {"anyOf": {}}]
    for schema in (*faults, {"enum": "a"}, {"required": "a"}, {"items": 3}, {"properties": [1]}):
        tool = {"type": "function", "function": {
            "name": "f", "strict": True,
            "parameters": {"type": "object", "properties": {"a": schema}},
        }}  # fmt: skip
        refusal(model, codec, tools=[tool], tool_choice="required")
        refusal(model, codec, response_format=form(schema))
    for pattern in ("foo**", "(a+)+$", "[", "(?=x)", "a{100000}"):
        custom = {"type": "custom", "custom": {"name": "f", "format": {
            "type": "grammar", "grammar": {"syntax": "regex", "definition": pattern},
        }}}  # fmt: skip
        served_or_refused(model, codec, tools=[custom], tool_choice="required")


@report(58)
def test_a_schema_that_explodes_has_a_bound(
    model: ServedModel, codec: TextCodec, thread: str
) -> None:
    """Large, nested and multiplied: within the bounds of one compilation, or refused."""
    words = [f"word{n}" for n in range(2500)]
    bounded: Any = {"enum": words}
    for _ in range(4):
        bounded = {"type": "object", "properties": {"a": bounded, "b": bounded}}
    many = {"type": "array", "items": {"type": "string", "pattern": "(a|b|ab|ba){1,900}"}}
    spent = time.process_time()
    for schema in ({"enum": words}, bounded, many, {"type": "string", "pattern": "(.*a){200}"}):
        served_or_refused(model, codec, response_format=form(schema))
    assert time.process_time() - spent < 10


def mask_of(guides: Guides, slot: int) -> list[int]:
    found: list[int] = guides.masks([slot])[0].tolist()
    return found


@report(59)
@pytest.mark.parametrize("pattern", [(3, 3, 1, 3), (0, 1, 2, 3), (2, 0, 3)])
def test_drafts_that_are_refused_leave_no_trace(thread: str, pattern: tuple[int, ...]) -> None:
    """Of three drafts `n` are taken: the others are undone, and the next mask is that of a
    matcher that never saw them."""
    tokenizer, found = grammars()
    source = grammar({"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]})
    ids = tokenizer.encode('{"a": [1, 2, {"b": [true, null]}, "x"]}')
    drafted, plain = found.compile(source), found.compile(source)
    at = 0
    masks = np.zeros((2, -(-tokenizer.vocab_size // 32)), np.uint32)
    for turn in range(len(ids)):
        taken = min(pattern[turn % len(pattern)] + 1, len(ids) - at)
        ahead = ids[at : at + 4]
        drafted.consume(ahead)
        drafted.rollback(len(ahead) - taken)
        plain.consume(ids[at : at + taken])
        at += taken
        if at == len(ids):
            break
        for matcher, mask in zip((drafted, plain), masks, strict=True):
            matcher.mask(mask)
        np.testing.assert_array_equal(*masks)
    assert drafted.is_accepting
    assert plain.is_accepting


@report(60)
def test_masks_go_to_their_own_rows_while_others_come_and_go(thread: str) -> None:
    tokenizer, found = grammars()
    sources = [grammar({"type": kind}) for kind in ("boolean", "null", "integer")]
    guides = Guides(found, tokenizer.vocab_size)
    alone = []
    for slot, source in enumerate(sources):
        guides.open(slot, source)
        alone.append(mask_of(guides, slot))
    assert len({tuple(mask) for mask in alone}) == 3
    for order in ((2, 0, 1), (1, 2), (0,)):
        assert guides.masks(order).tolist() == [alone[slot] for slot in order]
    guides.close(1)
    guides.advance(1, [65])
    guides.open(1, sources[0])
    assert guides.masks([2, 1, 0]).tolist() == [alone[2], alone[0], alone[0]]


@report(61)
def test_the_end_is_allowed_when_the_answer_is_complete_and_nothing_else_is(thread: str) -> None:
    tokenizer, found = grammars()
    stops = set(tokenizer.stop_ids)
    words = -(-tokenizer.vocab_size // 32)
    for text in ("true", "false"):
        matcher = found.compile(grammar({"type": "boolean"}))
        for token in tokenizer.encode(text):
            mask = np.zeros(words, np.uint32)
            matcher.mask(mask)
            allowed = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")))
            assert token in allowed
            assert not stops & allowed
            matcher.consume([token])
        mask = np.zeros(words, np.uint32)
        matcher.mask(mask)
        allowed = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")))
        assert allowed <= stops
        assert matcher.is_accepting
