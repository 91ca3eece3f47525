"""Client text never becomes a control token, whatever a template puts around it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dgpp.text.guard import ControlGuard, choose_sentinel

NASTY = ["<a>", "<<a>>", "a", "<", ">x", "<|end|>", "/no", "ab", "abc", "[M]"]
pieces = st.sampled_from([*NASTY, "<", ">", "|", "e", "nd", "b", "c", " ", "\n", "o", "M]"])
texts = st.lists(pieces, max_size=6).map("".join)
token_sets = st.lists(st.sampled_from(NASTY), min_size=1, unique=True)


@given(token_sets, st.lists(texts, min_size=1, max_size=4))
def test_marked_text_alone_yields_no_control(tokens: list[str], client: list[str]) -> None:
    guard = ControlGuard({text: number for number, text in enumerate(tokens)})
    sentinel = choose_sentinel(client)
    marked = "\n".join(guard.mark(text, sentinel) for text in client)
    split = list(guard.split(marked, sentinel))
    assert "".join(map(str, split)) == "\n".join(client)
    assert not any(isinstance(piece, int) for piece in split)


@given(texts, st.sampled_from(["<", "<|", "</", "x", "a", "<a"]), st.sampled_from([">", "|>", "b"]))
def test_template_text_cannot_complete_a_token(client: str, before: str, after: str) -> None:
    tokens = ["<|end|>", "<nd>", "</nd>", "xb", "<ab>", "<<ab>>", "b<"]
    guard = ControlGuard({text: number for number, text in enumerate(tokens)})
    sentinel = choose_sentinel([client])
    rendered = f"{before}{guard.mark(client, sentinel)}{after}"
    split = list(guard.split(rendered, sentinel))
    ours = guard.split(before, None), guard.split(after, None)
    allowed = sum(isinstance(piece, int) for side in ours for piece in side)
    if client:
        assert "".join(map(str, split)) == before + client + after
        assert sum(isinstance(piece, int) for piece in split) == allowed == 0


@given(texts)
def test_template_controls_around_client_text_stay(client: str) -> None:
    tokens = ["<|start|>", "<|end|>", "<think>"]
    guard = ControlGuard({text: number for number, text in enumerate(tokens)})
    sentinel = choose_sentinel([client])
    rendered = f"<|start|>{guard.mark(client, sentinel)}<|end|><think>"
    expected = [0, *([client] if client else []), 1, 2]
    assert list(guard.split(rendered, sentinel)) == expected


def test_longest_token_wins_and_the_common_heads_are_shared() -> None:
    guard = ControlGuard({"ab": 0, "abcd": 1, "abce": 2, "c": 3})
    assert list(guard.split("abcdabceabcxab", None)) == [1, 2, 0, 3, "x", 0]


def test_sentinel_is_none_of_the_texts_characters() -> None:
    taken = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    assert choose_sentinel(["plain"]) == "\ufdd0"
    assert choose_sentinel([taken, "x"]) == "\U000f0000"


def test_no_controls_at_all() -> None:
    guard = ControlGuard({})
    assert guard.mark("<a>", "\ufdd0") == "<a>"
    assert list(guard.split("<a>", None)) == ["<a>"]
