"""Prompts over their bound are refused before and after they are encoded, and never below it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.checkpoint.json_file import read_object
from dgpp.text.errors import PromptTooLongError
from dgpp.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"
TOKENIZER = Tokenizer.load(TINY)


@given(st.text(max_size=60), st.integers(0, 40))
def test_the_bound_is_exact(text, most):
    ids = TOKENIZER.encode(text)
    if len(ids) <= most:
        assert TOKENIZER.encode(text, most=most) == ids
    else:
        with pytest.raises(PromptTooLongError) as found:
            TOKENIZER.encode(text, most=most)
        assert most < found.value.tokens <= len(ids)


@given(st.text(max_size=40))
def test_the_bound_is_exact_under_a_normaliser_that_joins_characters(text):
    spec = read_object(TINY / "tokenizer.json")
    composed = Tokenizer({**spec, "normalizer": {"type": "NFC"}})
    ids = composed.encode(text)
    assert composed.encode(text, most=len(ids)) == ids


def test_a_text_that_must_be_too_long_is_not_encoded(monkeypatch):
    tokenizer = Tokenizer.load(TINY)
    monkeypatch.setattr(tokenizer, "_plain", None)
    with pytest.raises(PromptTooLongError, match="at least"):
        tokenizer.encode("a" * 100_000, most=100)


def test_marks_of_client_text_do_not_count():
    ids = TOKENIZER.encode_rendered("a\ufdd0<|im_start|>b", "\ufdd0")
    assert TOKENIZER.encode_rendered("a\ufdd0<|im_start|>b", "\ufdd0", most=len(ids)) == ids
