"""Template variables of a deployment: the names and values that a request may have, no others."""

import json

import pytest

from dgpp.config.engine_settings import TEMPLATE_SWITCHES
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings
from dgpp.errors import ConfigError
from dgpp.serve.chat import parse_chat
from dgpp.serve.errors import ApiError
from dgpp.serve.served import ServedModel

KEY = "engine.default_chat_template_kwargs"
EFFORTS = {effort: {"reasoning_effort": effort} for effort in ("none", "high", "xhigh", "max")}
MODEL = ServedModel("m", vocab_size=9, position_ceiling=99, kv_pool_tokens=99, efforts=EFFORTS)
NAMES = [*TEMPLATE_SWITCHES, "tools", "messages", "documents", "add_generation_prompt", "é", ""]
VALUES = [True, False, "high", "max", "xhigh", "none", "on", 1, 0, 1.0, [True], {"a": True}]


def in_config(given):
    document = {"model": "m", "engine": {"default_chat_template_kwargs": given}}
    return resolve(document, "f", site=SiteSettings()).engine.default_chat_template_kwargs


def in_request(given):
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "m", "messages": messages, "chat_template_kwargs": given}
    return parse_chat(json.dumps(body).encode(), "r", MODEL).template_kwargs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_deployment_may_set_what_a_request_may(name, value):
    try:
        in_request({name: value})
    except ApiError:
        with pytest.raises(ConfigError, match=KEY):
            in_config({name: value})
    else:
        assert in_config({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"enable_thinking": None}, ".enable_thinking: expected true or false, got null"),
        ({"enable_thinking": 1}, ".enable_thinking: expected true or false, got 1"),
        ({"reasoning_effort": "most"}, '.reasoning_effort: expected "none" or "minimal" or'),
        ({"enable_thinkin": 1}, f".enable_thinkin: unknown key (did you mean {KEY}.enable_thi"),
    ],
)
def test_an_entry_is_refused_by_its_name(given, problem):
    with pytest.raises(ConfigError) as caught:
        in_config(given)
    assert str(caught.value).startswith(f"cluster config f: {KEY}{problem}")
