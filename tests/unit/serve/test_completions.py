from __future__ import annotations

import json
from typing import Any

import pytest

from dgpp.sched.request import unpack_ids
from dgpp.serve.completions import parse_completion
from dgpp.serve.errors import ApiError
from dgpp.serve.request import GenerationRequest
from dgpp.serve.served import ServedModel


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
    ("field", "value"),
    [("echo", True), ("echo", 0), ("suffix", "x"), ("top_logprobs", 1), ("n", 2), ("best_of", 3),
     ("user", "u"), ("n", True)],
)  # fmt: skip
def test_refused_fields(model: ServedModel, field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        parse(model, prompt="a", **{field: value})
    assert (caught.value.param, caught.value.code) == (field, "unsupported_parameter")


def test_values_that_change_nothing_pass(model: ServedModel) -> None:
    found = parse(model, prompt="a", n=1, best_of=1, echo=False, suffix=None, logprobs=5, seed=7)
    assert (found.sampling.logprobs, found.seed, found.ignored) == (5, 7, 0)
    assert parse(model, prompt="a", logprobs=0).sampling.logprobs == 0
    assert parse(model, prompt="a").sampling.logprobs == -1
    with pytest.raises(ApiError, match="from 0 to 5"):
        parse(model, prompt="a", logprobs=6)
