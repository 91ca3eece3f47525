"""The document: as the parsers read, and nothing that the routes do not have."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from actors.http.routes import Routes
from dgpp.serve.errors import ApiError
from dgpp.serve.openapi.document import GETS, POSTS, document
from dgpp.serve.openapi.watch import read_schema
from dgpp.serve.served import ServedModel

Json = dict[str, Any]
FILES = 5
"""What can be done with files."""


@pytest.fixture(scope="module")
def whole(model: ServedModel) -> Json:
    return json.loads(json.dumps(document(model, "1.2.3")))


def body_schema(whole: Json, path: str) -> Json:
    return whole["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def test_every_route_is_in_it_and_every_entry_is_a_route(whole: Json) -> None:
    stated = {path: tuple(m.upper() for m in methods) for path, methods in whole["paths"].items()}
    assert stated == Routes(None).paths()  # type: ignore[arg-type]
    names = [entry[m]["operationId"] for entry in whole["paths"].values() for m in entry]
    assert len(names) == len(set(names)) == len(POSTS) + len(GETS) + FILES


def test_every_reference_leads_somewhere_and_every_schema_is_one(whole: Json) -> None:
    text = json.dumps(whole)
    used = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert used <= whole["components"]["schemas"].keys()
    for schema in whole["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for post in POSTS:
        Draft202012Validator.check_schema(body_schema(whole, post.path))


@pytest.mark.parametrize("post", POSTS, ids=lambda post: post.path)
def test_examples_are_read_and_fit_their_schema(whole: Json, post: Any, model: ServedModel) -> None:
    check = Draft202012Validator(body_schema(whole, post.path))
    for body in post.examples(model.id).values():
        check.validate(body)
        post.parse(json.dumps(body).encode(), "id", model)


def probes(schema: Json) -> list[Any]:
    """Values at the edges of a member's schema, and beyond them."""
    found: list[Any] = [None, True, 0, 0.5, "text", [], {}, -1, 10**30, "x" * 600]
    for one in (schema, *schema.get("anyOf", ())):
        for name, step in (("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1)):
            if name in one:
                found += [one[name], one[name] + step]
        found += one.get("enum", ())
        if "maxLength" in one:
            found += ["x" * one["maxLength"], "x" * (one["maxLength"] + 1)]
    return found


NEEDS_MORE = {"top_logprobs", "stream_options", "sse_ping_interval", "max_completion_tokens"}
"""Members that are only taken beside others."""

LOOSER = {
    "/v1/chat/completions": {"messages", "tools", "tool_choice", "response_format"}
    | {"reasoning_effort", "metadata", "logit_bias", "chat_template_kwargs"},
    "/v1/completions": {"logit_bias"},
    "/v1/responses": {"input", "tools", "tool_choice", "text"},
    "/v1/messages": {"messages", "tools", "tool_choice", "thinking", "system", "stop_sequences"},
}
LOOSER["/v1/messages/count_tokens"] = LOOSER["/v1/messages"]
LOOSER["/tokenize"] = {"messages", "tools", "prompt", "tool_choice"}
"""Members whose rules go beyond a schema's words: what fits may still be refused."""


@pytest.mark.parametrize("post", POSTS, ids=lambda post: post.path)
def test_what_the_schema_says_of_a_member_is_what_the_parser_does(
    whole: Json, post: Any, model: ServedModel
) -> None:
    schema = body_schema(whole, post.path)
    base = next(iter(post.examples(model.id).values()))
    for name, member in schema["properties"].items():
        check = Draft202012Validator(member)
        for value in probes(member):
            if name in NEEDS_MORE or (post.path == "/tokenize" and name == "messages"):
                continue
            try:
                post.parse(json.dumps(base | {name: value}).encode(), "id", model)
                taken = True
            except ApiError:
                taken = False
            fits = check.is_valid(value)
            if taken:
                assert fits, (name, value, member)
            elif name not in LOOSER.get(post.path, ()):
                assert not fits, (name, value, member)
    for name in schema["required"]:
        without = {key: value for key, value in base.items() if key != name}
        with pytest.raises(ApiError):
            post.parse(json.dumps(without).encode(), "id", model)


def test_a_member_may_be_what_it_is_in_any_entry() -> None:
    def read(fields: Any) -> None:
        for index, entry in enumerate(fields.array("all", 3) or []):
            one = fields.element("all", index, entry)
            one.needed_text("id")
            if one.needed_text("kind") == "a":
                one.integer("size", 1, 2)
                one.refuse("only_b")
            else:
                one.number("size", 0.0, 1.0)
                one.boolean("only_b")

    schema = read_schema(read, [{"all": [{"id": "", "kind": "a"}, {"id": "", "kind": "b"}]}])
    entry = schema["properties"]["all"]["items"]
    assert entry["required"] == ["id", "kind"]
    assert entry["properties"]["size"] == {
        "anyOf": [
            {"type": ["integer", "null"], "minimum": 1, "maximum": 2},
            {"type": ["number", "null"], "minimum": 0.0, "maximum": 1.0},
        ]
    }
    assert entry["properties"]["only_b"] == {"type": ["boolean", "null"]}
    assert schema["properties"]["all"]["maxItems"] == 3


SPAN = re.compile(r"(from|above) (\S+) (?:to|and at most) (\S+?)(?: and not (\S+))?$")


@pytest.mark.parametrize("post", POSTS, ids=lambda post: post.path)
def test_a_number_that_is_refused_is_told_exactly_which_are_taken(
    whole: Json, post: Any, model: ServedModel
) -> None:
    base = next(iter(post.examples(model.id).values()))
    beside = {"sse_ping_interval": {"stream": True}}

    def refusal(name: str, value: object) -> str:
        body = base | beside.get(name, {}) | {name: value}
        try:
            post.parse(json.dumps(body).encode(), "id", model)
        except ApiError as error:
            return error.message
        return ""

    for name, member in body_schema(whole, post.path)["properties"].items():
        if name in NEEDS_MORE - beside.keys() or "maximum" not in member:
            continue
        said = SPAN.search(refusal(name, -(10**30)))
        assert said is not None, name
        kind, low, high, but = said.groups()
        taken = {low: kind == "from", high: True, but: False}
        for text, is_taken in taken.items():
            if text is not None:
                value = int(text) if text.lstrip("-").isdigit() else float(text)
                assert (refusal(name, value) == "") == is_taken, (name, value)
