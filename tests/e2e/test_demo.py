"""The demo model served: real text, alike alone and in company, streamed and whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from dgpp.checkpoint.demo import DEMO_MODEL, ensure_demo
from dgpp.checkpoint.demo_source import FetchError
from dgpp.text.tokenizer import Tokenizer

QUESTIONS = [
    "What is the capital of France?",
    "Name three fruits.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "Count from one to ten.",
    "What is 12 + 30?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def client(serve_module):
    try:
        ensure_demo()
    except FetchError as error:
        pytest.skip(f"the demo model cannot be fetched here: {error}")
    server = serve_module(model=DEMO_MODEL, backend="cpu", prefill_budget_tokens=128)
    with openai.OpenAI(base_url=server.base + "/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(client, question, **more):
    asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 12}
    return client.chat.completions.create(model=DEMO_MODEL, **asked | more)


def text(answer):
    return answer.choices[0].message.content


def test_it_knows_a_capital(client):
    answer = ask(client, QUESTIONS[0], temperature=0)
    assert text(answer) == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"


def test_greedy_answers_are_the_same_alone_and_eight_at_once(client):
    alone = [text(ask(client, question, temperature=0)) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda q: text(ask(client, q, temperature=0)), QUESTIONS))
    assert together == alone
    assert len(set(alone)) == len(alone)


def test_a_seed_decides_a_sampled_answer_whatever_runs_beside_it(client):
    sampled = {"temperature": 1.0, "top_p": 0.95, "seed": 1234}
    alone = text(ask(client, QUESTIONS[2], **sampled))
    with ThreadPoolExecutor(6) as pool:
        mates = [pool.submit(ask, client, q, temperature=1.0) for q in QUESTIONS[3:8]]
        beside = text(ask(client, QUESTIONS[2], **sampled))
        for mate in mates:
            mate.result()
    assert beside == alone
    other = text(ask(client, QUESTIONS[2], **sampled | {"seed": 1235}))
    assert other != alone


def test_choices_of_one_request_follow_the_seeds_after_its_own(client):
    both = ask(client, QUESTIONS[3], temperature=1.0, seed=50, n=2)
    second = ask(client, QUESTIONS[3], temperature=1.0, seed=51)
    assert both.choices[1].message.content == text(second)


def test_logprobs_are_the_models_own(client):
    answer = ask(client, QUESTIONS[0], temperature=0, logprobs=True, top_logprobs=5)
    for entry in answer.choices[0].logprobs.content:
        best = entry.top_logprobs
        assert [t.logprob for t in best] == sorted((t.logprob for t in best), reverse=True)
        assert entry.logprob == best[0].logprob <= 0.0
    whole = b"".join(bytes(e.bytes) for e in answer.choices[0].logprobs.content)
    assert whole.decode() == text(answer)


def test_penalties_and_bias_change_what_is_said(client):
    asked = {"temperature": 0, "max_tokens": 24}
    plain = text(ask(client, QUESTIONS[1], **asked))
    asked["frequency_penalty"] = 2.0
    penalised = text(ask(client, QUESTIONS[1], **asked))
    assert penalised != plain
    streamed = ask(client, QUESTIONS[1], **asked, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == penalised
    biased = client.completions.create(
        model=DEMO_MODEL, prompt="x", max_tokens=3, temperature=0, logit_bias={"1234": 100}
    )
    assert biased.choices[0].text == 3 * Tokenizer.load(ensure_demo()).decode([1234])


def test_a_long_prompt_in_chunks_beside_a_running_stream(client):
    stream = client.completions.create(
        model=DEMO_MODEL, prompt="Once upon a time", max_tokens=40, temperature=0, stream=True
    )
    pieces = [next(stream).choices[0].text]
    long = "The lighthouse keeper wrote every evening in his book. " * 30
    asked = {"model": DEMO_MODEL, "prompt": long, "max_tokens": 8, "temperature": 0}
    beside = client.completions.create(**asked).choices[0].text
    pieces += [chunk.choices[0].text for chunk in stream]
    alone = client.completions.create(
        model=DEMO_MODEL, prompt="Once upon a time", max_tokens=40, temperature=0
    )
    assert "".join(pieces) == alone.choices[0].text
    assert client.completions.create(**asked).choices[0].text == beside
