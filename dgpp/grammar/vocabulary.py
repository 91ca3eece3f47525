"""A model's vocabulary as llguidance needs it: the bytes of every id, control tokens apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from dgpp.grammar.matcher import Grammars
from dgpp.text.codec import TextCodec
from dgpp.text.tokenizer import Tokenizer


class _Source:
    """What llguidance reads of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> None:
        controls = frozenset(tokenizer.controls.values())
        self.eos_token_id = stop_ids[0]
        self.special_token_ids = sorted({*controls, *stop_ids})
        self.tokens = [tokenizer.bytes.named(token)[1] for token in range(tokenizer.vocab_size)]
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("text is encoded, bytes are not")
        return self._encode(text)


def load_grammars(codec: TextCodec) -> Grammars | None:
    """What compiles grammars over a model's vocabulary; None where no token ends an answer. Holds
    the interpreter for up to two seconds."""
    if not codec.stop_ids:
        return None
    return Grammars(vocabulary(codec.tokenizer, codec.stop_ids))


def vocabulary(tokenizer: Tokenizer, stop_ids: Iterable[int]) -> LLTokenizer:
    """Masks over it have ⌈vocab_size / 32⌉ words. Control tokens match where a grammar names them
    by id and nowhere else; any of `stop_ids` (at least one) may end a complete answer."""
    stops = sorted(stop_ids)
    source = _Source(tokenizer, stops)
    return LLTokenizer(TokenizerWrapper(source), n_vocab=tokenizer.vocab_size, eos_token=stops)
