"""Schemas without end, without answers or without measure: their own request pays, nobody else."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dgpp.grammar.answer import Wanted, answer_grammar
from dgpp.grammar.errors import GrammarError
from dgpp.grammar.guides import Guides
from dgpp.serve.divisors import too_fine
from dgpp.text.dialect import Dialect
from tests.unit.grammar.test_answer_grammar import grammars

LOOP = {"$ref": "#"}
LISTS = {"type": "array", "items": {"$ref": "#/$defs/l"}, "minItems": 1}
SCHEMAS = [
    LOOP,
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"allOf": [LOOP]},
    {"type": "array", "items": LOOP, "minItems": 1},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/l"}},
        "required": ["a"],
        "$defs": {"l": {"$ref": "#/$defs/l"}},
    },
    {"type": "object", "properties": {"a": LISTS}, "required": ["a"], "$defs": {"l": LISTS}},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}},
    {
        "type": "object",
        "patternProperties": {"[^\\s\\S]": {}},
        "additionalProperties": False,
        "minProperties": 1,
    },
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: str(schema)[:40])
def test_no_schema_ends_more_than_its_own_answer(schema, strict):
    tokenizer, found = grammars()
    text = answer_grammar(
        Wanted(schema=schema, strict=strict), Dialect(), tokenizer, reasoning=False
    )
    guides = Guides(found, tokenizer.vocab_size)
    try:
        guides.open(0, text)
    except GrammarError:
        return
    draw = np.random.default_rng(3)
    until = time.monotonic() + 5
    for _ in range(40):
        (mask,) = guides.masks([0])
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not allowed.size:
            assert guides.stuck[0]
            guides.close(0)
        if not allowed.size or time.monotonic() > until:
            break
        # Whatever it comes to, it is said and not raised; then nothing more is allowed.
        assert not guides.stuck
        guides.advance(0, [int(draw.choice(allowed))])
    assert not guides.stuck


def test_a_schema_that_nothing_fits_is_refused_in_words():
    tokenizer, found = grammars()
    text = answer_grammar(Wanted(schema=LOOP, strict=True), Dialect(), tokenizer, reasoning=False)
    with pytest.raises(GrammarError, match=r"^no text fits it$"):
        found.compile(text)


@pytest.mark.parametrize(
    ("schema", "fine"),
    [
        ({"multipleOf": 10_000}, False),
        ({"multipleOf": 0.01}, False),
        ({"multipleOf": 1e-7}, False),
        ({"items": [{"multipleOf": 1_000_003}]}, True),
        ({"multipleOf": 1000003.5}, True),
        ({"allOf": [{"multipleOf": 101}, {"multipleOf": 103}]}, True),
        ({"allOf": [{"multipleOf": 100}, {"multipleOf": 50}]}, False),
        ({"multipleOf": True}, False),
    ],
)
def test_divisors_that_cost_too_much(schema, fine):
    assert too_fine(schema) == fine
