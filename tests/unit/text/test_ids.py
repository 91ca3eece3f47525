"""A model without a tokenizer: numbers come out, and no text goes in."""

from __future__ import annotations

import pytest

from dgpp.sched.verdict import Finish
from dgpp.text.errors import NoTokenizerError, TokenRangeError
from dgpp.text.ids import IdCodec
from dgpp.text.messages import Message
from dgpp.text.output import OutputStream


def test_ids_are_shown_as_numbers_and_stop_strings_work_on_them() -> None:
    codec = IdCodec(200, (7,))
    assert codec.stop_ids == {7}
    stream = OutputStream(codec.tokenizer.bytes, "r", 0, (" 9 1",))
    first = stream.feed([120, 5])
    assert first is not None
    assert [part.text for part in first.parts] == [" 120 5"]
    last = stream.feed([9, 12, 4], Finish.NONE)
    assert last is not None
    assert (last.parts, last.finish) == ((), "stop")


def test_texts_are_refused_with_the_way_out() -> None:
    codec = IdCodec(200)
    with pytest.raises(NoTokenizerError, match="send token ids to /v1/completions"):
        codec.prompt("hello")
    with pytest.raises(NoTokenizerError):
        codec.chat([Message(role="user", content="hello")])


def test_ids_have_a_range() -> None:
    codec = IdCodec(200)
    codec.tokenizer.check([0, 199])
    with pytest.raises(TokenRangeError, match="token id 200 is not below 200"):
        codec.tokenizer.check([200])
    with pytest.raises(TokenRangeError):
        IdCodec(200, (200,))
