from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dgpp.sched.request import unpack_ids
from dgpp.serve.completions import parse_completion
from dgpp.serve.errors import ApiError
from dgpp.serve.request import GenerationRequest
from dgpp.serve.served import ServedModel
from dgpp.serve.submission import Submission, submission
from dgpp.text.codec import TextCodec
from tests.unit.serve.test_tools import codec as codec


def parse(model: ServedModel, **fields: Any) -> GenerationRequest:
    body = json.dumps({"model": "org/name", **fields}).encode()
    return parse_completion(body, "cmpl-0", model)


def test_prompt_forms(model: ServedModel) -> None:
    assert parse(model, prompt="a").prompts == ("a",)
    two = parse(model, prompt=["a", "b"])
    assert (two.prompts, two.choices) == (("a", "b"), 2)
    assert [unpack_ids(p).tolist() for p in parse(model, prompt=[0, 511]).prompt_ids] == [[0, 511]]
    lists = parse(model, prompt=[[1], [2, 3]])
    assert [unpack_ids(p).tolist() for p in lists.prompt_ids] == [[1], [2, 3]]
    assert lists.choices == 2


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ([], "prompt"),
        ({}, "prompt"),
        (["a", 1], "prompt"),
        ([1, "a"], "prompt"),
        ([512], "prompt"),
        ([-1], "prompt"),
        ([1, True], "prompt"),
        ([True], "prompt"),
        ([1.5], "prompt"),
        ([10**20], "prompt"),
        ([[1], []], "prompt[1]"),
        ([[1], [999]], "prompt[1]"),
        (["a"] * 129, "prompt"),
    ],
)
def test_wrong_prompts(model: ServedModel, prompt: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(model, prompt=prompt)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("suffix", "x", "unsupported_parameter"),
        ("suffix", "", "unsupported_parameter"),
        ("top_logprobs", 1, "unsupported_parameter"),
        ("best_of", 3, "unsupported_parameter"),
        ("echo", 0, None),
        ("n", True, None),
        ("n", 129, None),
        ("n", 0, None),
        ("user", 1, None),
        ("max_tokens", -1, None),
    ],
)
def test_refused_fields(model: ServedModel, field: str, value: Any, code: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(model, prompt="a", **{field: value})
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, field, code)


def test_values_that_change_nothing_pass(model: ServedModel) -> None:
    found = parse(
        model, prompt="a", n=2, best_of=2, echo=False, suffix=None, logprobs=5, seed=7, user="u",
    )  # fmt: skip
    assert (found.choices, found.seed, found.ignored) == (2, 7, 0)
    assert not found.repeats_prompt
    assert found.scored == -1
    assert parse(model, prompt="a").sampling.logprobs == -1


def test_alternatives_stand_beside_the_token_itself(model: ServedModel) -> None:
    # The sampler gives the token the last place of its list: one more makes room for it.
    assert parse(model, prompt="a", logprobs=5).sampling.logprobs == 6
    assert parse(model, prompt="a", logprobs=0).sampling.logprobs == 1
    echoed = parse(model, prompt="a", logprobs=0, echo=True, max_tokens=0)
    assert (echoed.scored, echoed.repeats_prompt, echoed.max_tokens) == (0, True, 0)
    plain = parse(model, prompt="a", echo=True)
    assert (plain.scored, plain.repeats_prompt) == (-1, True)


def test_echo_with_logprobs_needs_a_model_that_scores(model: ServedModel) -> None:
    without = msgspec.structs.replace(model, scores=False)
    assert parse(without, prompt="a", echo=True).repeats_prompt
    with pytest.raises(ApiError) as caught:
        parse(without, prompt="a", echo=True, logprobs=1)
    assert (caught.value.param, caught.value.code) == ("echo", "unsupported_parameter")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, True),
        ({"cache_prompt": False}, False),
        ({"cache_prompt": True}, True),
        ({"prefix_cache": False}, False),
        ({"prefix_cache": False, "cache_prompt": False}, False),
        ({"prefix_cache": False, "cache_prompt": None}, False),
    ],
)
def test_the_cache_may_be_left_out_by_either_name(
    model: ServedModel, given: dict[str, Any], wanted: bool
) -> None:
    found = parse(model, prompt="a", **given)
    assert (found.prefix_cache, found.ignored) == (wanted, 0)


def test_two_names_must_agree(model: ServedModel) -> None:
    for either in (True, False):
        with pytest.raises(ApiError) as caught:
            parse(model, prompt="a", prefix_cache=either, cache_prompt=not either)
        assert (caught.value.status, caught.value.param) == (400, "cache_prompt")


def test_what_is_told_of_prompts_has_a_bound(model: ServedModel, codec: TextCodec) -> None:
    def asked(count: int, **fields: Any) -> Submission:
        prompt = [65] * count
        request = parse(model, prompt=prompt, n=64, echo=True, max_tokens=0, **fields)
        return submission(request, 1, codec, model, 0.0)

    found = asked(1024, logprobs=2)
    assert {(s.scored, s.max_tokens, s.uses_cache) for s in found.submits} == {(2, 0, False)}
    assert found.output.scored
    with pytest.raises(ApiError, match="65600 prompt tokens, the limit is 65536") as caught:
        asked(1025, logprobs=2)
    assert (caught.value.status, caught.value.param) == (400, "prompt")
    # To repeat a prompt is no more than to send it.
    plain = asked(1025)
    assert {(s.scored, s.uses_cache) for s in plain.submits} == {(-1, True)}
    assert plain.output.repeats_prompt
    assert not plain.output.scored


def test_a_prompt_may_fill_the_context_where_nothing_is_to_follow(
    model: ServedModel, codec: TextCodec
) -> None:
    full = parse(model, prompt=[65] * model.request_limit, max_tokens=0)
    assert submission(full, 1, codec, model, 0.0).submits[0].max_tokens == 0
    for most in (None, 1):
        over = parse(model, prompt=[65] * model.request_limit, max_tokens=most)
        with pytest.raises(ApiError) as caught:
            submission(over, 1, codec, model, 0.0)
        assert caught.value.code == "context_length_exceeded"


def test_wrong_logprobs(model: ServedModel) -> None:
    with pytest.raises(ApiError, match="from 0 to 5"):
        parse(model, prompt="a", logprobs=6)
