"""The JSON-Schema test suite: a schema is enforced or refused by name, never half.

docs/json_schema.md is the table of the outcome, by file of the suite.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer, TokenizerWrapper

from dgpp.grammar.errors import GrammarError
from dgpp.grammar.lark import COMPACT, LarkWriter
from dgpp.grammar.matcher import Grammars
from dgpp.text.tokenizer import Tokenizer

SUITE = Path(__file__).parents[4] / "shared" / "assets" / "evals" / "jsonschema" / "draft2020-12"
PAGE = Path(__file__).parents[3] / "docs" / "json_schema.md"
TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"


class Bytes:
    """A vocabulary of single bytes."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]  # noqa: RUF012
    special_token_ids = [256]  # noqa: RUF012

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(LLTokenizer(TokenizerWrapper(Bytes())))


def grammar(schema: Any) -> str:
    writer = LarkWriter(Tokenizer.load(TINY))
    return writer.source(writer.schema(schema, COMPACT))


def accepts(grammars: Grammars, source: str, text: str) -> bool:
    matcher = grammars.compile(source)._matcher
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def written(value: Any, schema: Any) -> Any:
    """`value` as a model is made to write it: declared keys first and in order, 1.0 as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [written(item, None) for item in value]
    if isinstance(value, dict):
        declared = properties(schema)
        keys = [key for key in declared if key in value]
        keys += [key for key in value if key not in declared]
        return {key: written(value[key], declared.get(key)) for key in keys}
    return value


def properties(schema: Any) -> dict[str, Any]:
    """The declared members in the order in which the schema has them."""
    found: dict[str, Any] = {}
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key == "properties":
            found |= value
        elif key == "allOf":
            for part in value:
                found |= properties(part)
    return found


def outcome(grammars: Grammars, case: dict[str, Any]) -> tuple[str, list[str]]:
    """ "enforced" or "refused", and the instances that were judged wrongly."""
    try:
        source = grammar(case["schema"])
        grammars.compile(source)
    except GrammarError:
        return "refused", []
    wrong = []
    for test in case["tests"]:
        text = json.dumps(written(test["data"], case["schema"]), ensure_ascii=False)
        if accepts(grammars, source, text) != test["valid"]:
            wrong.append(test["description"])
    return "enforced", wrong


def judged_apart(name: str, case: dict[str, Any], test: str) -> bool:
    """What is no fault: formats are enforced here, the suite has them as annotations; members
    come in the declared order only, also those of a constant."""
    if name == "format" and "only an annotation by default" in test:
        return True
    return test == "same object with different property order is valid"


def results(grammars: Grammars) -> tuple[dict[str, Counter[str]], list[tuple[str, str, str]]]:
    found: dict[str, Counter[str]] = {}
    wrong = []
    for path in sorted(SUITE.glob("*.json")):
        counts = found.setdefault(path.stem, Counter())
        for case in json.loads(path.read_text()):
            kind, faults = outcome(grammars, case)
            counts[kind] += 1
            wrong += [
                (path.stem, case["description"], test)
                for test in faults
                if not judged_apart(path.stem, case, test)
            ]
    return found, wrong


@pytest.mark.skipif(not SUITE.exists(), reason=f"no JSON-Schema test suite at {SUITE}")
def test_every_schema_is_enforced_or_refused(grammars):
    found, wrong = results(grammars)
    assert not wrong
    assert sum(counts["enforced"] for counts in found.values()) > 150
    table = [
        f"| {name} | {counts['enforced']} | {counts['refused']} |" for name, counts in found.items()
    ]
    assert "\n".join(table) in PAGE.read_text(), "\n".join(table)
