"""What each reasoning effort means to a model is found by rendering."""

from __future__ import annotations

import json

import pytest
import vendors

from dgpp.serve.anthropic.request import parse_messages
from dgpp.serve.chat import parse_chat
from dgpp.serve.errors import ApiError
from dgpp.serve.responses_api.request import parse_response
from dgpp.serve.served import ServedModel
from dgpp.text.efforts import LEVELS, efforts_of
from dgpp.text.template import ChatTemplate

GLM = dict(zip(LEVELS, ("low", "low", "high", "high", "max", "max"), strict=True))
QWEN = dict(zip(LEVELS, ("low", "low", "medium", "xhigh", "xhigh", "xhigh"), strict=True))
SELF = {level: level for level in LEVELS}
VENDORS = {
    "GLM-5.3": (GLM, False),
    "GLM-5.3-Flash": (GLM, False),
    "GLM-4.7-Flash": ({}, True),
    "MiMo-V2.6": ({}, True),
    "Qwen3.8": (QWEN, True),
    "deepseek_v4": (SELF, True),
    "deepseek_v41": (SELF, True),
}
USER = [{"role": "user", "content": "Hi"}]


@vendors.needed
@pytest.mark.parametrize("name", VENDORS)
def test_vendors_efforts(name):
    levels, switched = VENDORS[name]
    on = {"enable_thinking": True} if switched else {}
    expected = {"none": {"enable_thinking": False}} if switched else {}
    for level in LEVELS:
        expected[level] = on | ({"reasoning_effort": levels[level]} if levels else {})
    assert efforts_of(vendors.codec(name).template, {}) == expected


@vendors.needed
@pytest.mark.parametrize(
    ("effort", "number"),
    list(zip(LEVELS, (25, 50, 62, 75, 100, 100), strict=True)),
)
def test_the_newer_deepseek_is_told_a_number(effort, number):
    codec = vendors.codec("deepseek_v41")
    text = codec.template.render(USER, {"reasoning_effort": effort})
    assert f"Reasoning Effort: {number} (range" in text


def test_a_template_without_reasoning_knows_no_effort():
    assert efforts_of(ChatTemplate("{{ messages[0].content }}"), {}) == {}


MODEL = ServedModel(
    "m",
    9,
    9,
    9,
    template_kwargs={"enable_thinking": False},
    efforts={
        "none": {"enable_thinking": False},
        "high": {"enable_thinking": True, "reasoning_effort": "xhigh"},
    },
)
HIGH = MODEL.efforts["high"]


def chat(**fields):
    body = {"model": "m", "messages": USER, **fields}
    return parse_chat(json.dumps(body).encode(), "r", MODEL).template_kwargs


def test_an_effort_goes_over_the_servers_defaults():
    assert chat() == {"enable_thinking": False}
    assert chat(reasoning_effort="high") == HIGH
    assert chat(chat_template_kwargs={"reasoning_effort": "high"}) == HIGH
    assert chat(reasoning_effort="high", chat_template_kwargs={"thinking": True}) == HIGH
    assert chat(reasoning_effort="none") == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_reasoning_effort"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", None),
        (
            {"chat_template_kwargs": {"reasoning_effort": "max"}},
            "chat_template_kwargs.reasoning_effort",
            "unsupported_reasoning_effort",
        ),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "none"}},
            "chat_template_kwargs.reasoning_effort",
            None,
        ),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"thinking": False}},
            "reasoning_effort",
            None,
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "reasoning_effort",
            None,
        ),
    ],
)
def test_efforts_that_cannot_be_meant_are_refused(fields, param, code):
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


def test_other_apis_have_their_own_words_for_it():
    body = {"model": "m", "input": "Hi", "reasoning": {"effort": "high"}}
    assert parse_response(json.dumps(body).encode(), "r", MODEL).template_kwargs == HIGH
    body = {"model": "m", "max_tokens": 1, "messages": USER}
    for extra, expected in (
        ({"output_config": {"effort": "high"}}, HIGH),
        ({"output_config": {"effort": "low"}}, {"enable_thinking": False}),
        (
            {"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}},
            {"enable_thinking": False},
        ),
    ):
        found = parse_messages(json.dumps(body | extra).encode(), "r", MODEL)
        assert found.template_kwargs == expected
