"""No body reaches recursive code unbounded; all that is not sound JSON is a 400."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.serve.errors import ApiError
from dgpp.serve.jsonsafe import parse_object

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=12,
)


@given(st.dictionaries(texts, values, max_size=4), st.booleans())
def test_sound_objects_come_through(body: dict, ascii_only: bool) -> None:
    assert parse_object(json.dumps(body, ensure_ascii=ascii_only).encode()) == body


@given(st.binary(max_size=40) | st.text('[]{}",:\\ud8e+-10x', max_size=40).map(str.encode))
def test_any_bytes_give_an_object_or_a_400(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except ApiError as error:
        assert error.status == 400  # noqa: PT017


def nested(depth: int) -> bytes:
    """`depth` levels in all, the outer object included."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_depth_is_64_llama_cpp_27434() -> None:
    assert parse_object(nested(64))
    for body in (nested(65), nested(60_000), b"[" * 60_000, b'{"a":' * 100_000):
        with pytest.raises(ApiError, match="64 levels"):
            parse_object(body)
    assert parse_object(b'{"a": "%b"}' % (b"[" * 100)), "brackets in texts are no depth"
    assert parse_object(b'{"a": "\\"%b"}' % (b"{" * 100))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"a": 1} x', "not JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 400 + b"}", "over 128 characters"),
        (b'{"a": [' + b"[]," * 1_000_001 + b"[]]}", "over 2000000 values"),
        (b'{"a": [' + b'"",' * 2_000_001 + b"0]}", "over 500000 strings"),
        (b'"' + b'\\"' * 1_000_000, "Unterminated"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\xbd"}', "not UTF-8"),
        (b'{"a": "\n"}', "not JSON"),
        (b'{"a": "\\ud83d"}', "surrogate"),
        (b'{"a": "\\udc00 x"}', "surrogate"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' is given twice"),
        (b'{"x": {"b": 2, "b": 2}}', "'b' is given twice"),
    ],
)
def test_refused_by_name(body: bytes, named: str) -> None:
    with pytest.raises(ApiError, match=named) as caught:
        parse_object(body)
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"


def test_bounds_do_not_look_into_strings() -> None:
    inside = "[" * 100 + "9" * 400 + '"' + "{" * 70
    assert parse_object(json.dumps({"a": inside, "b": [1]}).encode()) == {"a": inside, "b": [1]}


def test_whole_surrogate_pairs_and_long_integers_are_exact() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude42"}') == {"a": "🙂"}
    assert (
        parse_object(b'{"a": 123456789012345678901234567890}')["a"]
        == 123456789012345678901234567890
    )
