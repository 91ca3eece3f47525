"""Values of clients and models in answers: whatever JSON can say can be answered."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.serve.encode import encode
from dgpp.serve.errors import ApiError
from dgpp.serve.fronts import FRONTS
from dgpp.serve.responses_api.request import parse_response
from dgpp.serve.served import ServedModel
from dgpp.text.delta import ArgumentsPart, CallPart, Delta, TextPart

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_encoded_is_read_back(value):
    assert json.loads(encode(value)) == value


ODD = [10**30, -(10**120), {"a": [2**64, 2**63, 0.1]}, "\x00", [[[[]]]], 1e308]


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("member", ["metadata", "text", "user", "tool_choice"])
def test_a_response_repeats_whatever_was_sent(model: ServedModel, member, value):
    body = {"model": model.id, "input": "x", "tools": [{"type": "function", "name": "f"}]}
    body["tools"][0]["parameters"] = {"maximum": value}
    try:
        asked = parse_response(json.dumps(body | {member: value}).encode(), "resp_1", model)
    except ApiError:
        asked = parse_response(json.dumps(body).encode(), "resp_1", model)
    last = Delta("resp_1", 0, 1, (TextPart("y"),), finish="stop")
    whole = FRONTS["responses"].whole(asked, 0)
    whole.add(last)
    assert json.loads(whole.json())["tools"][0]["parameters"]["maximum"] == value
    events = FRONTS["responses"].streamed(asked, 0, lambda n: "x" * n).add(last)
    for line in events.splitlines():
        if line.startswith(b"data: "):
            json.loads(line.removeprefix(b"data: "))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"n": 1' + "0" * 40 + "}", {"n": 10**40}),
        ('{"n": ' + "[" * 5000 + "]" * 5000 + "}", {}),
        ('{"n": 1e999}', {}),
        ('{"n": NaN}', {}),
        ('{"n": 1, "n": 2}', {}),
        ('{"n": "cut', {}),
    ],
)
def test_a_call_that_a_model_made_up_is_an_object(text, read, model):
    asked = FRONTS["messages"].parse(
        json.dumps(
            {"model": model.id, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        ).encode(),
        "msg_1",
        model,
    )
    whole = FRONTS["messages"].whole(asked, 0)
    parts = (CallPart(0, "call_1", "f"), ArgumentsPart(0, text))
    whole.add(Delta("msg_1", 0, 1, parts, finish="tool_calls"))
    assert json.loads(whole.json())["content"][0]["input"] == read
