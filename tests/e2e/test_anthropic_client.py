"""Anthropic's own client against a scripted server that thinks, talks and calls a tool."""

from __future__ import annotations

import anthropic
import pytest

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}


@pytest.fixture(scope="module")
def client(talking):
    with anthropic.Anthropic(base_url=talking.base, api_key="none", max_retries=0) as found:
        yield found


def ask(talking):
    return {
        "model": talking.model(),
        "max_tokens": 400,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [TOOL],
    }


def test_metrics_count_calls_and_drafts(client, talking):
    before = talking.metrics()
    client.messages.create(**ask(talking))
    after = talking.metrics()
    assert after["service"]["tool_calls_out"] == before["service"]["tool_calls_out"] + 1
    levels = after["scheduler"]
    drafts = levels["spec_decode"]
    # Of a script's steps of five tokens, four are drafts; all that it says is accepted.
    assert drafts["depth"] == 4
    assert drafts["num_drafts_total"] > 3
    assert drafts["num_draft_tokens_total"] >= drafts["num_accepted_tokens_total"] > 0
    for kind in ("draft", "accepted"):
        by_position = drafts[f"num_{kind}_tokens_per_pos_total"]
        assert sum(by_position) == drafts[f"num_{kind}_tokens_total"]
        assert by_position == sorted(by_position, reverse=True)
    # Every row of a choice commits one token, and as many more as were accepted.
    rows = levels["prompts_prefilled"] + levels["decode_rows"]
    assert levels["tokens_generated"] == rows + drafts["num_accepted_tokens_total"]


def test_streamed_and_whole_messages_say_the_same(client, talking):
    asked = ask(talking)
    whole = client.messages.create(**asked)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.content[0].thinking == "Hm, rain?"
    assert whole.content[1].text == "Let me look.\n"
    assert whole.content[2].input == {"city": "Köln", "days": 3}
    assert whole.stop_reason == "tool_use"

    kinds = []
    with client.messages.stream(**asked) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_message()
    for streamed, block in zip(final.content, whole.content, strict=True):
        for key in ("type", "text", "thinking", "signature", "name", "input"):
            assert getattr(streamed, key, None) == getattr(block, key, None), key
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3

    counted = client.messages.count_tokens(
        **{key: value for key, value in asked.items() if key != "max_tokens"}
    )
    assert counted.input_tokens == whole.usage.input_tokens


def test_the_answer_goes_back_as_history(client, talking):
    asked = ask(talking)
    first = client.messages.create(**asked)
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "rain"}
    asked["messages"] += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    again = client.messages.create(**asked)
    assert again.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def test_stop_sequences_and_limits_are_named(client, talking):
    asked = ask(talking)
    stopped = client.messages.create(**asked, stop_sequences=["look"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "look")
    asked["max_tokens"] = 3
    assert client.messages.create(**asked).stop_reason == "max_tokens"


def test_faults_have_the_clients_own_form(client, talking):
    asked = ask(talking)
    asked["messages"] = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
        client.messages.create(**asked)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ask(talking), "model": "other"})


def test_tokens_and_back(talking):
    status, found = talking.post("/tokenize", {"prompt": "Köln 🍻"})
    assert (status, found["count"]) == (200, len(found["tokens"]))
    assert talking.post("/detokenize", {"tokens": found["tokens"]}) == (200, {"prompt": "Köln 🍻"})
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    status, found = talking.post("/tokenize", chat)
    text = talking.post("/detokenize", {"tokens": found["tokens"]})[1]["prompt"]
    assert text == "[user]Hi[assistant]<think>"
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", **chat}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [True]}),
    ):
        assert talking.post(path, body)[0] == 400
