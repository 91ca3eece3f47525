"""Tools from the request to the wire: parsed, shown to the model, its calls told in both forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from dgpp.sched.request import unpack_ids
from dgpp.sched.verdict import Finish
from dgpp.serve.chat import parse_chat
from dgpp.serve.errors import ApiError
from dgpp.serve.request import GenerationRequest
from dgpp.serve.responses import WholeAnswer
from dgpp.serve.served import ServedModel
from dgpp.serve.sse import DONE, event_stream
from dgpp.serve.submission import Submission, submission
from dgpp.text.codec import TextCodec
from dgpp.text.delta import ArgumentsPart, CallPart, Delta, ReasoningPart, TextPart
from dgpp.text.output import OutputStream
from dgpp.text.template import ChatTemplate
from dgpp.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"
TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls %}"
    "<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}"
    "</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}"
    "</tool_call>"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]<think>{% endif %}"
)
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather <b>now</b>",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {}}},
}
WRAPPED = [{"type": "function", "function": WEATHER}]


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(Tokenizer.load(TINY), ChatTemplate(TEMPLATE))


def parse(model: ServedModel, **fields: Any) -> GenerationRequest:
    body = {"model": "org/name", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_chat(json.dumps(body).encode(), "chatcmpl-1", model)


def submit(model: ServedModel, codec: TextCodec, **fields: Any) -> Submission:
    return submission(parse(model, **fields), 1, codec, model, 0.0)


def test_tools_are_shown_as_the_client_wrote_them(model, codec):
    for tools in (WRAPPED, [{"type": "function", **WEATHER}]):
        found = submit(model, codec, tools=tools)
        text = codec.tokenizer.decode(unpack_ids(found.prompts[0]), skip_special=False)
        assert text == json.dumps(WEATHER) + "\n[user]Hi[assistant]<think>"
        assert found.output.reasoning
        assert list(found.output.tools) == ["get_weather"]


def test_no_answer_can_be_longer_than_it_may(model, codec):
    assert submit(model, codec, min_tokens=8, max_tokens=8).submits[0].sampling.min_tokens == 8
    with pytest.raises(ApiError, match="the answer has 8 tokens at most") as caught:
        submit(model, codec, min_tokens=9, max_tokens=8)
    assert (caught.value.status, caught.value.param) == (400, "min_tokens")


def test_tools_survive_the_way_to_the_tokenizer(model):
    request = parse(model, tools=WRAPPED)
    packed = msgspec.msgpack.encode(request)
    assert msgspec.msgpack.decode(packed, type=GenerationRequest) == request


def test_no_choice_shows_tools_and_reads_no_calls(model, codec):
    found = submit(model, codec, tools=WRAPPED, tool_choice="none")
    assert not found.output.tools
    assert "get_weather" in codec.tokenizer.decode(unpack_ids(found.prompts[0]))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [*WRAPPED, *WRAPPED]}, "tools[1]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "x" * 65}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f", "parameters": 1}}]}, "tools[0].function.parameters"),
        ({"tools": [1]}, "tools[0]"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": WRAPPED, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        (
            {"tools": WRAPPED, "tool_choice": {"type": "allowed_tools", "tools": []}},
            "tool_choice.mode",
        ),
        (
            {
                "tools": WRAPPED,
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []},
            },
            "tool_choice.tools",
        ),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"tools": WRAPPED, "tool_choice": "often"}, "tool_choice"),
        ({"tools": WRAPPED, "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [{"function": {"name": str(i)}} for i in range(129)]}, "tools"),
    ],
)
def test_what_is_wrong_is_named(model, fields, param):
    with pytest.raises(ApiError) as refused:
        parse(model, **fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_model_without_calls_refuses_tools(model, codec):
    bare = TextCodec(codec.tokenizer, ChatTemplate("{{ messages[0].content }}"))
    with pytest.raises(ApiError) as refused:
        submit(model, bare, tools=WRAPPED)
    assert refused.value.code == "tools_unsupported"


def test_reasoning_in_content_leaves_the_tags(model, codec):
    folded = msgspec.structs.replace(model, reasoning_in_content=True)
    output = submit(folded, codec).output
    stream = OutputStream(codec.tokenizer.bytes, "r", 0, output)
    delta = stream.feed([*codec.prompt("so</think>yes"), 0], Finish.EOS)
    assert delta is not None
    assert delta.text == "so</think>yes"


ANSWER = Delta(
    "x", 0, 9,
    (
        ReasoningPart("hm"), TextPart("a"), CallPart(0, "call_1", "get_weather"),
        ArgumentsPart(0, '{"city": "K'), ArgumentsPart(0, 'öln"}'),
        CallPart(1, "call_2", "run", custom=True), ArgumentsPart(1, "print()"),
    ),
    (), "tool_calls", 3,
)  # fmt: skip
CALLS = [
    {"id": "call_1", "type": "function",
     "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}},
    {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "print()"}},
]  # fmt: skip


def test_a_whole_answer_with_calls(model):
    answer = WholeAnswer(parse(model, tools=WRAPPED), 17)
    answer.add(ANSWER)
    found = orjson.loads(answer.json())
    ChatCompletion.model_validate(found)
    choice = found["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "a")
    assert message["tool_calls"] == CALLS
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_calls_alone_leave_content_null(model):
    answer = WholeAnswer(parse(model, tools=WRAPPED), 17)
    answer.add(Delta("x", 0, 1, (CallPart(0, "c", "f"), ArgumentsPart(0, "{}")), (), "tool_calls"))
    assert answer.object()["choices"][0]["message"]["content"] is None


def test_a_stream_with_calls_joins_to_the_whole(model):
    data = event_stream(parse(model, tools=WRAPPED, stream=True), 17).events(ANSWER)
    chunks = [orjson.loads(line[6:]) for line in data.split(b"\n\n")[:-1] if line != DONE.strip()]
    calls: list[dict[str, Any]] = []
    text = reasoning = ""
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        if "custom" not in json.dumps(delta):
            ChatCompletionChunk.model_validate(chunk)
        text += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                calls.append({key: value for key, value in call.items() if key != "index"})
                continue
            assert not call.keys() & {"id", "type"}
            kind, key = ("function", "arguments") if "function" in call else ("custom", "input")
            calls[call["index"]][kind][key] += call[kind][key]
    assert (text, reasoning, calls) == ("a", "hm", CALLS)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_custom_call_in_the_history_reads_as_the_model_wrote_it(model, codec):
    call = {"id": "c", "type": "custom", "custom": {"name": "run", "input": "print()"}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    found = submit(model, codec, messages=messages, tools=[{"type": "custom", "name": "run"}])
    text = codec.tokenizer.decode(unpack_ids(found.prompts[0]), skip_special=False)
    shown = "<tool_call>run<arg_key>input</arg_key><arg_value>print()</arg_value></tool_call>"
    assert f"[assistant]{shown}[tool]ok" in text
