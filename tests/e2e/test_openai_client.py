"""The official client against a scripted server: what it streams is what was scripted."""

from __future__ import annotations

import openai
import pytest

from dgpp.text.tokenizer import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog. Prost: 🍻 und Käse!"


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return Tokenizer.load(tiny)


@pytest.fixture(scope="module")
def talking(serve_module, tokenizer):
    """A server whose every choice says TEXT and ends."""
    ids = [*tokenizer.encode(TEXT), min(tokenizer.stop_ids)]
    return serve_module(script=[{"ids": ids, "per_step": [1, 3, 2]}])


@pytest.fixture(scope="module")
def client(talking):
    with openai.OpenAI(base_url=talking.base + "/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(client, **more):
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Say it."}]
    return client.chat.completions.create(model=model, messages=messages, **more)


def test_chat_one_shot_and_streamed_say_the_same(client, tokenizer):
    whole = ask(client)
    assert whole.choices[0].message.content == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == len(tokenizer.encode(TEXT)) + 1

    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert finishes == [None] * (len(finishes) - 1) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_the_streaming_helper_ends_with_the_whole_answer(client):
    whole = ask(client)
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Say it."}]
    with client.chat.completions.stream(model=model, messages=messages) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
    final = stream.get_final_completion()
    assert final.choices[0].message.content == said == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_two_choices_have_their_own_indices_and_ends(client):
    whole = ask(client, n=2)
    assert [c.index for c in whole.choices] == [0, 1]
    assert [c.message.content for c in whole.choices] == [TEXT, TEXT]
    texts, ends = ["", ""], []
    for chunk in ask(client, n=2, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        ends += [choice.index] if choice.finish_reason else []
    assert texts == [TEXT, TEXT]
    assert sorted(ends) == [0, 1]


def test_a_stop_string_ends_the_text_before_itself(client):
    whole = ask(client, stop=["lazy"])
    assert whole.choices[0].message.content == TEXT[: TEXT.index("lazy")]
    assert whole.choices[0].finish_reason == "stop"
    streamed = ask(client, stop=["lazy"], stream=True)
    said = "".join(c.choices[0].delta.content or "" for c in streamed)
    assert said == whole.choices[0].message.content


def test_logprobs_spell_the_content(client):
    whole = ask(client, logprobs=True, top_logprobs=2, temperature=0)
    entries = whole.choices[0].logprobs.content
    assert bytes(b for e in entries for b in e.bytes).decode() == TEXT
    # A script leaves one id, which is certain.
    assert {e.logprob for e in entries} == {0.0}
    assert all(len(e.top_logprobs) == 1 for e in entries)


def test_the_length_limit_cuts_and_says_so(client):
    whole = ask(client, max_tokens=5)
    assert whole.usage.completion_tokens == 5
    assert whole.choices[0].finish_reason == "length"


def test_a_completion_streams(client):
    model = client.models.list().data[0].id
    whole = client.completions.create(model=model, prompt="Say", max_tokens=500)
    assert whole.choices[0].text == TEXT
    chunks = client.completions.create(model=model, prompt="Say", max_tokens=500, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == TEXT


def test_a_completion_begins_with_its_prompt_where_asked(client, tokenizer):
    """vllm#6521: echo with max_tokens 0, and what lm-eval reads of it."""
    model = client.models.list().data[0].id
    prompts = [tokenizer.encode(text) for text in ("Käse for two", "and one more")]
    asked = {"model": model, "prompt": prompts, "echo": True, "logprobs": 1}
    whole = client.completions.create(**asked, max_tokens=0)
    assert [c.text for c in whole.choices] == ["Käse for two", "and one more"]
    assert {c.finish_reason for c in whole.choices} == {"length"}
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (sum(map(len, prompts)), 0)
    for choice, prompt in zip(whole.choices, prompts, strict=True):
        told = choice.logprobs
        assert told.token_logprobs[0] is None
        assert told.top_logprobs[0] is None
        # A scripted engine knows nothing of prompts: each of the 479 ids is as likely.
        assert told.token_logprobs[1:] == pytest.approx([-6.171700597] * (len(prompt) - 1))
        assert len(told.tokens) == len(told.text_offset) == len(prompt)
    one = client.completions.create(**asked, max_tokens=1)
    entries = [len(choice.logprobs.tokens) for choice in one.choices]
    assert entries == [len(prompt) + 1 for prompt in prompts]
    pieces = ["", ""]
    for chunk in client.completions.create(**asked, max_tokens=4, stream=True):
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    said = tokenizer.decode(tokenizer.encode(TEXT)[:4])
    assert pieces == ["Käse for two" + said, "and one more" + said]


def test_errors_are_the_clients_own_kinds(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError) as found:
        ask(client, max_tokens=1_000_000)
    assert (found.value.code, found.value.param) == ("context_length_exceeded", "max_tokens")
    with pytest.raises(openai.BadRequestError) as found:
        ask(client, n=10**9)
    assert found.value.param == "n"
