"""What stands in for a tokenizer where a model has none: ids go in, and come out as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from dgpp.text.bytelevel import TokenBytes
from dgpp.text.codec import TextCodec
from dgpp.text.errors import NoTokenizerError
from dgpp.text.guard import ControlGuard
from dgpp.text.messages import Message, Tool
from dgpp.text.tokenizer import Tokenizer


class IdTokenizer(Tokenizer):
    """Knows how many ids there are and no text; id 17 is shown as " 17"."""

    def __init__(self, vocab_size: int, stop_ids: Iterable[int] = ()) -> None:
        self.controls = {}
        self.special = frozenset()
        self.named = {}
        self.vocab_size = vocab_size
        self.stop_ids = frozenset(stop_ids)
        self.bytes = TokenBytes(" {}".format, {}, frozenset())
        self.guard = self.answer_guard = ControlGuard({})
        self.check(self.stop_ids)

    def _encode(self, pieces: Iterable[str | int], size: int, most: int | None) -> NoReturn:
        raise NoTokenizerError

    def token_id(self, text: str) -> None:
        return None


class IdCodec(TextCodec):
    """Refuses every text."""

    def __init__(self, vocab_size: int, stop_ids: Iterable[int] = ()) -> None:
        super().__init__(IdTokenizer(vocab_size, stop_ids), None)

    def chat(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, bool | str] | None = None,
        *,
        tools: Sequence[Tool] = (),
        now: float = 0.0,
        most: int | None = None,
    ) -> NoReturn:
        raise NoTokenizerError
