"""Requests that broke servers: refused by name, or served; never the end of anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from dgpp.sample.params import SamplingParams
from dgpp.sched.request import Submit, pack_ids
from dgpp.serve.accounting import Accounting
from dgpp.serve.chat import parse_chat
from dgpp.serve.errors import ApiError
from dgpp.serve.logprobs import chat_logprobs
from dgpp.serve.served import ServedModel
from dgpp.text.delta import Delta, TokenLogprob, TopLogprob
from dgpp.text.errors import TemplateError
from dgpp.text.template import ChatTemplate
from tests.known_reports.ledger import report
from tests.unit.engine.test_scripted import World

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAE"
    "hQGAhKmMIQAAAABJRU5ErkJggg=="
)


def refusal(model: ServedModel, raw: bytes | None = None, **fields: Any) -> ApiError:
    body = {"model": "org/name", "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(ApiError) as caught:
        parse_chat(json.dumps(body).encode() if raw is None else raw, "id", model)
    assert caught.value.status == 400
    return caught.value


@report(64)
def test_alternatives_are_as_many_as_asked_and_in_order(model: ServedModel, thread: str) -> None:
    body = {"model": "org/name", "messages": [{"role": "user", "content": "x"}], "logprobs": True}
    for asked in (None, 0, 1, 20):
        fields = body if asked is None else {**body, "top_logprobs": asked}
        found = parse_chat(json.dumps(fields).encode(), "id", model)
        assert found.sampling.logprobs == (asked or 0)
    assert refusal(model, logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refusal(model, top_logprobs=1).param in ("top_logprobs", "logprobs")
    (entry,) = chat_logprobs([TokenLogprob("a", b"a", -1.0)])["content"]
    assert entry["top_logprobs"] == []
    best = (TopLogprob("b", b"b", -0.5), TopLogprob("a", b"a", -1.0))
    (entry,) = chat_logprobs([TokenLogprob("a", b"a", -1.0, best)])["content"]
    assert [one["token"] for one in entry["top_logprobs"]] == ["b", "a"]


@report(67)
def test_what_was_cached_of_a_prompt_counts_once_for_all_its_choices(thread: str) -> None:
    account = Accounting(8, n=4)
    account.prompt(60)
    for choice in range(8):
        account.take(Delta("id", choice, 2, finish="stop", cached_tokens=20 + choice // 4))
    usage = account.usage()
    assert usage["prompt_tokens"] == 60
    assert usage["prompt_tokens_details"]["cached_tokens"] == 20 + 21
    assert usage["completion_tokens"] == 16


@report(68)
def test_choices_of_a_request_with_priority_are_all_served(thread: str) -> None:
    world = World(b'{"ids": [10, 11]}')
    choices = [Submit(f"a-{i}", pack_ids([1, 2]), 3, priority=7) for i in range(5)]
    world.tick(Submit("b-0", pack_ids([3]), 3, priority=-7), *choices)
    world.run()
    assert {name: len(tokens) for name, tokens in world.answers.items()} == {
        "b-0": 3, **{f"a-{i}": 3 for i in range(5)}
    }  # fmt: skip


@report(69)
@pytest.mark.parametrize(
    "bias",
    [{"99999999": 5}, {"-1": 1}, {"abc": 1}, {"512": 1}, {"1": 101}, {"1": -101}, {"1": None},
     {"1": "2"}, {"01": 1}, {"": 1}, [[1, 2]], {str(n): 0 for n in range(1025)}],
)  # fmt: skip
def test_biases_of_no_token_are_refused(model: ServedModel, thread: str, bias: Any) -> None:
    assert (refusal(model, logit_bias=bias).param or "").startswith("logit_bias")


@report(72)
@pytest.mark.parametrize("n", [10**9, 129, 0, -1, 10**400, 1.5, "2"])
def test_a_number_of_choices_without_bound_is_refused(
    model: ServedModel, thread: str, n: Any
) -> None:
    assert refusal(model, n=n).param in ("n", None)


@report(85)
@pytest.mark.parametrize("escape", ["\\ud83d", "\\ud83dx", "\\udc00", "\\ud83d\\ud83d"])
def test_half_a_character_is_the_clients_fault(
    model: ServedModel, thread: str, escape: str
) -> None:
    head = b'{"model":"org/name","messages":[{"role":"user","content":"'
    assert refusal(model, head + escape.encode() + b'"}]}').status == 400


@report(89)
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lGODlhAQABAAAAACw="}},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1/secret.png"}},
    ],
)
def test_images_that_cannot_be_read_are_refused_by_their_place(
    model: ServedModel, thread: str, part: dict[str, Any]
) -> None:
    found = refusal(model, messages=[{"role": "user", "content": [part]}])
    assert (found.param or "").startswith("messages[0].content[0]")


@report(90)
@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.__class__.mro() }}",
        "{{ messages.append(1) }}",
        "{{ '%s' % ''.__class__ }}{{ (''|attr('__class__')).x }}",
    ],
)
def test_a_template_reaches_nothing_but_the_conversation(thread: str, template: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(template).render([{"role": "user", "content": "x"}], {})


@report(90)
def test_no_request_brings_a_template(model: ServedModel, thread: str) -> None:
    attack = "{{ ''.__class__.__mro__ }}"
    found = refusal(model, chat_template_kwargs={"chat_template": attack})
    assert (found.param or "").startswith("chat_template_kwargs")
    body = {"model": "org/name", "messages": [{"role": "user", "content": "x"}]}
    asked = parse_chat(json.dumps({**body, "chat_template": attack}).encode(), "id", model)
    assert attack not in str(structs.asdict(asked))
    assert asked.ignored == 1
    assert asked.sampling == SamplingParams()
