from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from dgpp.text.codec import TextCodec

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"


@pytest.fixture(scope="session")
def codec() -> TextCodec:
    return TextCodec.load(TINY)


@pytest.fixture(scope="session")
def library() -> tokenizers.Tokenizer:
    """The tokenizer as the library itself reads the file: the oracle."""
    return tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
