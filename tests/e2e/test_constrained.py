"""Constrained answers through a whole server: whatever the model would say, the answer fits."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import openai
import pydantic
import pytest
from serving import CALLING_TEMPLATE

from dgpp.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "wet": {"type": "boolean"}},
    "required": ["city", "wet"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
FORM = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def model_dir(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calling") / "model"
    shutil.copytree(tiny, folder)
    (folder / "chat_template.jinja").write_text(CALLING_TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def babbling(serve_module, model_dir):
    """A server whose model says other things."""
    ids = Tokenizer.load(model_dir).encode("nothing of the kind, ever. ")
    return serve_module(model_dir, [{"ids": ids, "per_step": [2]}], placement="inline")


def ask(server, **more):
    body = {"model": server.model(), "messages": [{"role": "user", "content": "x"}], **more}
    return server.post("/v1/chat/completions", {"max_tokens": 200, **body})


def test_json_fits_its_schema_beside_free_answers(babbling):
    status, free = ask(babbling, max_tokens=9)
    assert status == 200
    assert free["choices"][0]["message"]["content"].startswith("nothing")
    for _ in range(2):
        status, found = ask(babbling, response_format=FORM)
        assert status == 200, found
        choice = found["choices"][0]
        value = json.loads(choice["message"]["content"])
        assert value.keys() == {"city", "wet"}
        assert len(value["city"]) <= 5
        assert choice["finish_reason"] == "stop"


class Weather(pydantic.BaseModel):
    city: Annotated[str, pydantic.Field(max_length=5)]
    wet: bool | None


def test_a_parsed_answer_is_of_the_class_that_was_asked_for(babbling):
    with openai.OpenAI(base_url=babbling.base + "/v1", api_key="none", max_retries=0) as client:
        found = client.chat.completions.parse(
            model=babbling.model(),
            messages=[{"role": "user", "content": "x"}],
            max_tokens=200,
            response_format=Weather,
        )
    assert isinstance(found.choices[0].message.parsed, Weather)


def test_plans_ahead_of_verdicts_wait_for_masks_and_go_on_after_them(serve, model_dir):
    ids = Tokenizer.load(model_dir).encode("nothing of the kind, ever. ")
    server = serve(script=[{"ids": ids}], model=str(model_dir), pipeline_depth=1)
    with ThreadPoolExecutor(4) as pool:
        free = [pool.submit(ask, server, max_tokens=150) for _ in range(2)]
        bound = [pool.submit(ask, server, response_format=FORM) for _ in range(2)]
        said = {answer.result()[1]["choices"][0]["message"]["content"] for answer in free}
        assert len(said) == 1
        for answer in bound:
            status, found = answer.result()
            assert status == 200, found
            assert json.loads(found["choices"][0]["message"]["content"]).keys() == {"city", "wet"}


@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ],
)
def test_forced_calls(babbling, choice, finish):
    status, found = ask(babbling, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert status == 200, found
    answer = found["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]).keys() == {"city", "wet"}
    assert answer["finish_reason"] == finish


@pytest.fixture(scope="module")
def without_end(babbling):
    """A schema that compiles, and whose grammar is over its limits behind the first bracket."""
    schema = {"type": "array", "items": {"$ref": "#"}, "minItems": 1}
    return {"name": "w", "schema": schema, "strict": True}


def test_an_answer_that_its_grammar_cannot_finish_is_cut_off(babbling, without_end):
    form = {"type": "json_schema", "json_schema": without_end}
    status, found = ask(babbling, response_format=form)
    assert status == 200, found
    (choice,) = found["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("[", "length")
    assert found["usage"]["completion_tokens"] == 1
    name = found["id"]
    assert babbling.log.count(f"request {name}-0 is cut off: its grammar cannot go on: ") == 1
    with openai.OpenAI(base_url=babbling.base + "/v1", api_key="none", max_retries=0) as client:
        asked = {"model": babbling.model(), "messages": [{"role": "user", "content": "x"}]}
        chunks = list(client.chat.completions.create(**asked, response_format=form, stream=True))
        assert chunks[-1].choices[0].finish_reason == "length"
        with pytest.raises(openai.LengthFinishReasonError):
            client.chat.completions.parse(**asked, response_format=form)
        answer = client.responses.create(
            model=babbling.model(),
            input="x",
            text={"format": {"type": "json_schema", **without_end}},
        )
    assert (answer.status, answer.output_text) == ("incomplete", "[")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert ask(babbling, response_format=FORM)[1]["choices"][0]["finish_reason"] == "stop"


def test_what_cannot_be_enforced_is_refused_by_its_path(babbling):
    schema = {**SCHEMA, "properties": {"a": {"type": "array", "uniqueItems": True}}}
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}}
    status, found = ask(babbling, response_format=form)
    assert (status, found["error"]["code"]) == (400, "unsupported_schema")
    assert found["error"]["param"] == (
        "response_format.json_schema.schema.properties.a.uniqueItems"
    )
    form["json_schema"]["strict"] = False
    form["json_schema"]["schema"]["required"] = []
    assert ask(babbling, response_format=form)[0] == 200
