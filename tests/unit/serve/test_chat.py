from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.sample.params import SamplingParams
from dgpp.serve.budget import token_budget
from dgpp.serve.chat import parse_chat
from dgpp.serve.errors import ApiError
from dgpp.serve.request import GenerationRequest, choice_seed
from dgpp.serve.served import ServedModel, sampling_defaults
from dgpp.text.messages import Message, ToolCall

USER = [{"role": "user", "content": "Hi"}]
KWARGS = "chat_template_kwargs"
LIST_CALL = {"id": "c", "function": {"name": "f", "arguments": "[1]"}}
FIELDS = ["messages", "stop", "n", "logit_bias", "stream_options", "tools", "seed", "metadata"]


def parse(served: ServedModel, /, **fields: Any) -> GenerationRequest:
    body = {"model": "org/name", "messages": USER, **fields}
    return parse_chat(json.dumps(body).encode(), "chatcmpl-0", served)


def refusal(served: ServedModel, /, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(served, **fields)
    return caught.value


def test_the_least_request_has_the_servers_defaults(model: ServedModel) -> None:
    expected = GenerationRequest("chatcmpl-0", "chat", "org/name", (Message("user", "Hi"),))
    assert parse(model) == expected


def test_every_field_arrives_and_crosses_a_process_border(model: ServedModel) -> None:
    found = parse(
        model, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, repetition_penalty=1.5,
        presence_penalty=-2, frequency_penalty=2, seed=-1, stop=["a", "b"], n=3, max_tokens=7,
        logprobs=True, top_logprobs=20, logit_bias={"5": -100, "0": 1.5}, stream=True,
        stream_options={"include_usage": True, "include_obfuscation": True}, sse_ping_interval=-1,
        ignore_eos=True, prefix_cache=False, priority=-100, metadata={"k": "v"}, user="u",
        service_tier="auto", modalities=["text"], store=False, tool_choice="none", tools=[],
        parallel_tool_calls=True, response_format={"type": "text"}, min_tokens=4, foo={}, bar=1,
        chat_template_kwargs={"thinking": False, "preserve_thinking": True},
    )  # fmt: skip
    assert found == GenerationRequest(
        id="chatcmpl-0",
        kind="chat",
        model="org/name",
        messages=(Message("user", "Hi"),),
        template_kwargs={"enable_thinking": False, "preserve_thinking": True},
        n=3,
        max_tokens=7,
        sampling=SamplingParams(0.5, 0.9, 3, 0.1, 1.5, -2.0, 2.0, 20, ((0, 1.5), (5, -100.0)), 4),
        seed=-1,
        stop=("a", "b"),
        stream=True,
        include_usage=True,
        include_obfuscation=True,
        ping_interval=-1,
        ignore_eos=True,
        prefix_cache=False,
        priority=-100,
        metadata={"k": "v"},
        service_tier="default",
        ignored=2,
    )
    packed = msgspec.msgpack.encode(found)
    assert msgspec.msgpack.decode(packed, type=GenerationRequest) == found


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("model", None, "model"),
        ("model", 1, "model"),
        ("messages", [], "messages"),
        ("messages", "x", "messages"),
        ("messages", ["x"], "messages[0]"),
        ("messages", [{"role": "owner", "content": "x"}], "messages[0].role"),
        ("messages", [{"content": "x"}], "messages[0].role"),
        ("messages", [{"role": "user"}], "messages[0].content"),
        ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
        ("messages", [*USER, {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
        ("messages", [{"role": "assistant", "reasoning_content": "x"}], "messages[0].content"),
        ("messages", [{**USER[0], "reasoning_content": "x"}], "messages[0].reasoning_content"),
        ("messages", [{**USER[0], "function_call": {}}], "messages[0].function_call"),
        ("messages", [{**USER[0], "name": 5}], "messages[0].name"),
        ("n", 0, "n"),
        ("n", 10**9, "n"),
        ("n", 1.0, "n"),
        ("min_tokens", -1, "min_tokens"),
        ("min_tokens", 1.5, "min_tokens"),
        ("n", True, "n"),
        ("max_tokens", 0, "max_tokens"),
        ("max_completion_tokens", 2**31, "max_completion_tokens"),
        ("temperature", 2.1, "temperature"),
        ("temperature", "1", "temperature"),
        ("temperature", True, "temperature"),
        ("top_p", -0.1, "top_p"),
        ("top_k", 2**31, "top_k"),
        ("min_p", 2, "min_p"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("repetition_penalty", 101, "repetition_penalty"),
        ("presence_penalty", 3, "presence_penalty"),
        ("frequency_penalty", -3, "frequency_penalty"),
        ("seed", 2**63, "seed"),
        ("stop", "", "stop"),
        ("stop", [], "stop"),
        ("stop", ["a"] * 5, "stop"),
        ("stop", ["a", 1], "stop"),
        ("stop", "é" * 129, "stop"),
        ("logit_bias", {"99999999": 5}, "logit_bias"),
        ("logit_bias", {"512": 5}, "logit_bias"),
        ("logit_bias", {"-1": 1}, "logit_bias"),
        ("logit_bias", {"abc": 1}, "logit_bias"),
        ("logit_bias", {"01": 1}, "logit_bias"),
        ("logit_bias", {"1": 101}, "logit_bias.1"),
        ("logit_bias", {"1": None}, "logit_bias"),
        ("logit_bias", {str(i): 1 for i in range(1025)}, "logit_bias"),
        ("logprobs", 1, "logprobs"),
        ("top_logprobs", 5, "top_logprobs"),
        ("stream", "yes", "stream"),
        ("stream_options", {}, "stream_options"),
        ("sse_ping_interval", 5, "sse_ping_interval"),
        ("ignore_eos", None, "ignore_eos"),
        ("priority", 101, "priority"),
        ("metadata", {"k": 1}, "metadata.k"),
        ("metadata", {str(i): "v" for i in range(17)}, "metadata"),
        ("metadata", {"k" * 65: "v"}, "metadata"),
        ("safety_identifier", "x" * 65, "safety_identifier"),
        ("service_tier", "flex", "service_tier"),
        ("tool_choice", "auto", "tool_choice"),
        ("response_format", {}, "response_format.type"),
        ("reasoning_effort", "some", "reasoning_effort"),
        (KWARGS, {"chat_template": "{{ 1 }}"}, f"{KWARGS}.chat_template"),
        (KWARGS, {"thinking": True, "enable_thinking": False}, f"{KWARGS}.thinking"),
        (KWARGS, {"enable_thinking": "yes"}, f"{KWARGS}.enable_thinking"),
    ],
)  # fmt: skip
def test_wrong_values_name_their_field(
    model: ServedModel, field: str, value: Any, param: str
) -> None:
    error = refusal(model, **{field: value})
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert error.param == param
    assert len(error.message) < 400


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        *[(name, {}, "unsupported_parameter") for name in ("web_search_options", "audio")],
        *[(name, "x", "unsupported_parameter") for name in ("function_call", "verbosity")],
        ("functions", [], "unsupported_parameter"),
        ("prompt_cache_key", "k", "unsupported_parameter"),
        ("store", True, "unsupported_parameter"),
        ("modalities", ["audio"], "unsupported_parameter"),
        ("reasoning_effort", "high", "unsupported_reasoning_effort"),
    ],
)
def test_what_is_not_served_is_refused_by_code(
    model: ServedModel, field: str, value: Any, code: str
) -> None:
    error = refusal(model, **{field: value})
    assert (error.status, error.param, error.code) == (400, field, code)


def test_combinations(model: ServedModel) -> None:
    assert refusal(model, max_tokens=1, max_completion_tokens=1).param == "max_completion_tokens"
    assert parse(model, max_tokens=None, max_completion_tokens=9).max_tokens == 9
    error = refusal(model, stream=True, stream_options={"continuous_usage_stats": True})
    assert error.param == "stream_options.continuous_usage_stats"
    assert refusal(model, stream=True, sse_ping_interval=0).param == "sse_ping_interval"
    empty = parse(model, stream=True, stream_options={})
    assert (empty.include_usage, empty.include_obfuscation) == (False, False)
    assert parse(model, logprobs=True).sampling.logprobs == 0
    assert refusal(model, logprobs=True, top_logprobs=21).param == "top_logprobs"
    greedy = parse(model, top_p=0).sampling
    assert (greedy.top_k, greedy.top_p) == (1, 1.0)


def test_another_model_is_a_404(model: ServedModel) -> None:
    error = refusal(model, model="other/model")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    aliased = msgspec.structs.replace(model, aliases=("short",))
    assert parse(aliased, model="short").model == "short"


def message(model: ServedModel, **members: Any) -> Message:
    return parse(model, messages=[members]).messages[0]


def test_message_forms(model: ServedModel) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message(model, role="developer", content=parts) == Message("system", "ab")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    expected = Message("assistant", tool_calls=(ToolCall("c", "f", '{"a": 1}'),))
    assert message(model, role="assistant", content=None, tool_calls=[call]) == expected
    call["function"]["arguments"] = {"a": 1}
    assert message(model, role="assistant", tool_calls=[call]) == expected
    thinking = [
        {"type": "thinking", "thinking": "x", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "thinking", "thinking": "y"},
    ]
    folded = Message("assistant", "", reasoning="x\n\ny")
    assert message(model, role="assistant", content=thinking) == folded
    explicit = message(model, role="assistant", content=thinking, reasoning_content="")
    assert explicit.reasoning == ""
    refused = [{"type": "refusal", "refusal": "no"}]
    assert message(model, role="assistant", content=refused) == Message("assistant", "no")
    tool = Message("tool", "ab", tool_call_id="c")
    assert message(model, role="tool", content=parts, tool_call_id="c") == tool


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "messages[0].content[0].type",
            "unsupported_content_type",
        ),
        (
            {"role": "user", "content": [{"type": "thinking", "thinking": "x"}]},
            "messages[0].content[0].type",
            None,
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text", None),
        (
            {"role": "assistant", "tool_calls": [LIST_CALL]},
            "messages[0].tool_calls[0].function.arguments",
            None,
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]},
            "messages[0].tool_calls[0].custom.name",
            None,
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "", "type": "custom", "custom": {}}]},
            "messages[0].tool_calls[0].id",
            None,
        ),
    ],
)  # fmt: skip
def test_message_faults(model: ServedModel, members: Any, param: str, code: str | None) -> None:
    error = refusal(model, messages=[members])
    assert (error.param, error.code) == (param, code)


@given(st.dictionaries(
    st.sampled_from(FIELDS),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["role", "content", "type", "text", "1", "x"]), inner),
        ),
        max_leaves=8,
    ),
))  # fmt: skip
def test_any_values_give_a_request_or_a_4xx(model: ServedModel, fields: dict) -> None:
    try:
        parse(model, **fields)
    except ApiError as error:
        assert error.status in (400, 404)  # noqa: PT017


def test_budget_names_prompt_and_limit_vllm_4667(model: ServedModel) -> None:
    def budget(prompt: int, asked: int | None, served: ServedModel = model) -> int:
        request = GenerationRequest("chatcmpl-0", "chat", "org/name", max_tokens=asked)
        return token_budget(prompt, request, served)

    assert budget(10, None) == 256
    assert budget(4090, None) == 6
    assert budget(4000, 96) == 96
    for prompt, asked, param in (
        (4000, 97, "max_tokens"),
        (4096, None, "messages"),
        (9000, 1, "messages"),
    ):
        with pytest.raises(ApiError, match=rf"{prompt} tokens.*limit is 4096") as caught:
            budget(prompt, asked)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
        assert "-" not in caught.value.message
    small = msgspec.structs.replace(model, kv_pool_tokens=100)
    with pytest.raises(ApiError, match=r"limit is 100 \(engine.kv_capacity\)"):
        budget(50, 51, small)
    with pytest.raises(ApiError, match="at least one token"):
        budget(0, 1)


def test_defaults_of_generation_config() -> None:
    found = sampling_defaults({"temperature": 0.6, "top_k": 20, "top_p": 0, "eos_token_id": 1})
    assert found == SamplingParams(temperature=0.6, top_k=1, top_p=1.0)
    assert (
        sampling_defaults({"temperature": -1, "min_p": "x", "repetition_penalty": 0})
        == SamplingParams()
    )


def test_choice_seeds_wrap_at_64_bits() -> None:
    assert [choice_seed(-1, k) for k in range(3)] == [2**64 - 1, 0, 1]
