"""OpenAI's client on /v1/responses, against a scripted server that thinks, talks and calls."""

from __future__ import annotations

from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from dgpp.text.tokenizer import Tokenizer

TOOL = {
    "type": "function",
    "name": "get_weather",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
}


@pytest.fixture(scope="module")
def client(talking):
    with openai.OpenAI(base_url=talking.base + "/v1", api_key="none", max_retries=0) as found:
        yield found


def fields(item):
    keys = ("type", "name", "arguments", "role", "status")
    return {key: getattr(item, key, None) for key in keys}


def test_streamed_and_whole_responses_say_the_same(client, talking):
    asked = {"model": talking.model(), "input": "Weather?", "tools": [TOOL]}
    asked["max_output_tokens"] = 400
    whole = client.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert whole.output[0].content[0].text == "Hm, rain?"
    assert whole.output_text == "Let me look.\n"
    assert whole.output[2].arguments == '{"city": "Köln", "days": 3}'
    assert (whole.status, whole.store) == ("completed", False)

    numbers, text = [], ""
    with client.responses.stream(**asked) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
        final = stream.get_final_response()
    assert numbers == sorted(set(numbers))
    assert text == whole.output_text
    assert [fields(item) for item in final.output] == [fields(item) for item in whole.output]
    assert final.usage == whole.usage


def test_the_answer_goes_back_as_input(client, talking):
    asked = {"model": talking.model(), "tools": [TOOL], "max_output_tokens": 400}
    first = client.responses.create(**asked, input="Weather?", instructions="Be brief.")
    call = first.output[2]
    history = [{"role": "user", "content": "Weather?"}, *first.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    again = client.responses.create(**asked, input=history, instructions="Be brief.")
    # The template puts other marks around the same words.
    assert again.usage.input_tokens > first.usage.input_tokens + 0.9 * first.usage.output_tokens


def test_limits_and_faults_are_named(client, talking):
    asked = {"model": talking.model(), "input": "Weather?"}
    cut = client.responses.create(**asked, max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**asked, previous_response_id="resp_1")
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=talking.model(), input=image)
    assert refused.value.param == "input[0].content[0].type"


class Weather(BaseModel):
    wet: bool
    sky: Literal["blue", "grey"]


def test_structured_outputs_parse(serve, thinking_dir):
    babbling = serve(
        script=[{"ids": Tokenizer.load(thinking_dir).encode("so</think>", controls=True)}],
        model=thinking_dir,
        placement="inline",
    )
    with openai.OpenAI(base_url=babbling.base + "/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "x"}]
        chat = client.chat.completions.parse(
            model=babbling.model(), messages=messages, response_format=Weather, max_tokens=200
        )
        assert isinstance(chat.choices[0].message.parsed, Weather)
        response = client.responses.parse(
            model=babbling.model(), input="x", text_format=Weather, max_output_tokens=200
        )
        assert isinstance(response.output_parsed, Weather)
