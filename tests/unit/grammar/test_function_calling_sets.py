"""Real tools and reference calls (Berkeley's function calling sets): all compile, all are said."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import vendors

from dgpp.grammar.answer import Wanted, answer_grammar
from dgpp.grammar.matcher import Grammars
from dgpp.grammar.vocabulary import vocabulary
from dgpp.sched.verdict import Finish
from dgpp.serve.fields import Fields
from dgpp.serve.tools import parse_tools
from dgpp.text.calls.format import FORMATS, ToolFormat
from dgpp.text.calls.values import ToolSchema
from dgpp.text.delta import ArgumentsPart, CallPart
from dgpp.text.dialect import Dialect
from dgpp.text.messages import Tool
from dgpp.text.output import OutputOptions, OutputStream
from dgpp.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"
SETS = vendors.ASSETS / "evals" / "bfcl"
CATEGORIES = ("simple_python", "multiple", "parallel")
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
SAMPLE = 40
"""Every so many-th entry is tried in every run, in all formats; all of them behind `long`."""


def mapped(schema: Any) -> Any:
    """Python's names of types as JSON's; `any` is no type at all."""
    if isinstance(schema, list):
        return [mapped(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: mapped(value) for key, value in schema.items()}
    if isinstance(found.get("type"), str):
        found["type"] = TYPES.get(found["type"], found["type"])
        if found["type"] == "any":
            del found["type"]
    return found


def plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


@cache
def entries() -> list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    found = []
    for category in CATEGORIES:
        asked = (SETS / f"BFCL_v4_{category}.json").read_text().splitlines()
        given = (SETS / f"answers_{category}.json").read_text().splitlines()
        answers = {row["id"]: row["ground_truth"] for row in map(json.loads, given)}
        found += [(r["id"], r["function"], answers[r["id"]]) for r in map(json.loads, asked)]
    return found


def tools_of(functions: list[dict[str, Any]], strict: bool) -> tuple[Tool, ...]:
    offered = [
        {
            "type": "function",
            "function": {
                "name": plain(function["name"]),
                "description": function["description"],
                "parameters": mapped(function["parameters"]),
                "strict": strict,
            },
        }
        for function in functions
    ]
    return parse_tools(Fields({"tools": offered})).tools


def chosen(options: Any) -> Any:
    """The first of the values that a reference allows; inside objects, of each member."""
    return settled(next(one for one in options if one != "" or len(options) == 1))


def settled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: chosen(inner) for key, inner in value.items() if inner != [""]}
    return [settled(one) for one in value] if isinstance(value, list) else value


def calls_of(truth: list[dict[str, Any]], tools: tuple[Tool, ...]) -> list[tuple[str, Any]]:
    """Reference calls, arguments in the order in which the tool declares them; those that may be
    left out ("" among their options) are, unless the tool requires them."""
    schemas = {tool.name: json.loads(tool.definition)["parameters"] for tool in tools}
    found = []
    for call in truth:
        [(name, options)] = call.items()
        schema = schemas[plain(name)]
        needed = {key for key, given in options.items() if "" not in given}
        needed |= set(schema.get("required", ())) & options.keys()
        given = {key: chosen(options[key]) for key in schema["properties"] if key in needed}
        found.append((plain(name), given))
    return found


@cache
def compiler() -> tuple[Tokenizer, Grammars]:
    tokenizer = Tokenizer.load(TINY)
    return tokenizer, Grammars(vocabulary(tokenizer, tokenizer.stop_ids))


def check(form: ToolFormat, entry: int, strict: bool) -> None:
    name, functions, truth = entries()[entry]
    tools = tools_of(functions, strict)
    calls = calls_of(truth, tools)
    tokenizer, grammars = compiler()
    dialect = Dialect(None, form)
    wanted = Wanted(tools=tools, choice="required")
    matcher = grammars.compile(answer_grammar(wanted, dialect, tokenizer, reasoning=False))
    ids = tokenizer.encode(form.block(calls), controls=True)
    taken = matcher._matcher.try_consume_tokens(ids)
    assert taken == len(ids), (name, tokenizer.decode(ids[:taken]), functions)
    assert matcher.is_accepting, name
    schemas = {
        tool.name: ToolSchema(tool.name, json.loads(tool.definition)["parameters"])
        for tool in tools
    }
    stream = OutputStream(tokenizer.bytes, "r", 0, OutputOptions(dialect=dialect, tools=schemas))
    delta = stream.feed([*ids, 0], Finish.EOS)
    assert delta is not None
    names = [part.name for part in delta.parts if isinstance(part, CallPart)]
    told = [json.loads(part.text) for part in delta.parts if isinstance(part, ArgumentsPart)]
    assert list(zip(names, told, strict=True)) == calls, name


needed = pytest.mark.skipif(not SETS.is_dir(), reason=f"no function calling sets at {SETS}")


@needed
@pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
def test_some_tools_of_every_category(form: ToolFormat) -> None:
    for entry in range(0, len(entries()), SAMPLE):
        check(form, entry, strict=entry % 2 == 0)


@needed
@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
@pytest.mark.parametrize("strict", [False, True])
def test_all_tools(form: ToolFormat, strict: bool) -> None:
    for entry in range(len(entries())):
        check(form, entry, strict)
