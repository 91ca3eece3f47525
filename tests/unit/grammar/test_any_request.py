"""Whatever a request asks of its answer, it is a grammar or a 400 that names where (R8, R9)."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.grammar.matcher import Grammars
from dgpp.grammar.vocabulary import vocabulary
from dgpp.serve.chat import parse_chat
from dgpp.serve.constraint import constrains, grammar_of
from dgpp.serve.errors import ApiError
from dgpp.serve.served import ServedModel
from dgpp.text.calls.format import FORMATS, ToolFormat
from dgpp.text.codec import TextCodec
from dgpp.text.dialect import Dialect, Thinking

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"
MODEL = ServedModel("m", 512, 4096, 4096)
LARK = ["start: start start", 'start: "a" |', "start: x", "start: /a/\nA: A"]
USER = [{"role": "user", "content": "Hi"}]


@cache
def tools() -> tuple[TextCodec, Grammars]:
    codec = TextCodec.load(TINY)
    return codec, Grammars(vocabulary(codec.tokenizer, codec.stop_ids))


def refusal(form: ToolFormat, **fields: Any) -> ApiError | None:
    """What such a request is refused with; None where it has a grammar."""
    codec, grammars = tools()
    codec.dialect = Dialect(Thinking(False, b""), form)
    body = {"model": "m", "messages": USER, **fields}
    try:
        request = parse_chat(json.dumps(body).encode(), "r", MODEL)
        if constrains(request):
            grammar_of(request, codec, grammars, reasoning=True)
    except ApiError as error:
        return error
    return None


scalars = st.sampled_from([None, True, 0, -1, 2**70, 1e300, "", "a", "string", "#/$defs/x"])
regexes = st.sampled_from(["foo**", "(a+)+$", "(?=a)b", "[", "a{2,9999}", "\\p{L}", "(" * 200, "/"])
words = "type properties items enum const anyOf allOf oneOf not $ref required pattern minLength"
words += " maxLength minimum additionalProperties $defs patternProperties prefixItems format"
words += " uniqueItems multipleOf if x é"
keywords = st.sampled_from(words.split())
schemas = st.recursive(
    st.one_of(scalars, regexes, st.sampled_from(["object", "array", ["string", "null"]])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(keywords, inner, max_size=4)
    ),
    max_leaves=12,
)
sound = st.sampled_from(["string", "integer", "array", "object"]).map(lambda kind: {"type": kind})
likely = st.dictionaries(keywords, st.one_of(schemas, sound), max_size=4)


@settings(max_examples=80)
@given(
    st.sampled_from(FORMATS),
    likely,
    st.one_of(schemas, likely),
    st.booleans(),
    st.sampled_from(["auto", "required", {"type": "function", "function": {"name": "f"}}]),
    st.sampled_from([None, "json_schema", "json_object"]),
)
def test_any_schema_is_compiled_or_refused_by_name(form, tool, answer, strict, choice, kind):
    parameters = {"type": "object", "properties": {"a": tool}, "$defs": {"x": tool}}
    function = {"name": "f", "parameters": parameters, "strict": strict}
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": function}]}
    fields["tool_choice"] = choice
    if kind is not None:
        schema = {"name": "a", "schema": answer, "strict": strict}
        fields["response_format"] = {"type": kind, "json_schema": schema}
    start = time.monotonic()
    error = refusal(form, **fields)
    assert time.monotonic() - start < 5
    if error is not None:
        assert (error.status, bool(error.message)) == (400, True)
        assert str(error.param).startswith(("tools[0]", "response_format"))


@settings(max_examples=25)
@given(
    st.sampled_from(FORMATS),
    st.sampled_from(["regex", "lark"]),
    st.one_of(
        regexes, st.text(max_size=20), st.just("start: start start"), st.just('start: "a" |')
    ),
)
def test_any_grammar_of_a_custom_tool_is_compiled_or_refused(form, syntax, text):
    given_format = {"type": "grammar", "grammar": {"syntax": syntax, "definition": text}}
    custom = {"name": "c", "format": given_format}
    error = refusal(form, tools=[{"type": "custom", "custom": custom}])
    assert error is None or (error.status == 400 and str(error.param).startswith("tools"))


def test_one_of_many_tools_at_fault_is_named():
    good = {"type": "function", "function": {"name": "g", "strict": True}}
    bad = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": bad, "strict": True}}
    error = refusal(FORMATS[0], tools=[good, tool])
    assert error is not None
    assert error.param == "tools[1].function.parameters.properties.a.uniqueItems"
    assert error.code == "unsupported_schema"
