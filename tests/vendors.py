"""Vendors' tokenizers and templates, where they are at hand; they never enter the repository."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dgpp.text.codec import TextCodec
from dgpp.text.deepseek import VERSIONS, DeepSeekTemplate
from dgpp.text.template import ChatTemplate
from dgpp.text.tokenizer import Tokenizer

ASSETS = Path(__file__).parents[2] / "shared" / "assets"
needed = pytest.mark.skipif(not ASSETS.is_dir(), reason=f"no vendors' files at {ASSETS}")

MODELS = {
    "GLM-4.7-Flash": "glm",
    "GLM-5.3": "glm",
    "GLM-5.3-Flash": "glm",
    "MiMo-V2.6": "mimo-v2.6",
    "Qwen3.8": "qwen3.8",
    "deepseek_v4": "deepseek-v4",
    "deepseek_v41": "deepseek-v4",
}
"""Templates, by file or by model_type, and the tokenizer of each."""
TOKENIZERS = tuple(dict.fromkeys(MODELS.values()))


@cache
def tokenizer(name: str) -> Tokenizer:
    """Half a second and more each: shared by all tests of a process."""
    packed = (ASSETS / "tokenizers" / name / "tokenizer.json.xz").read_bytes()
    return Tokenizer(json.loads(lzma.decompress(packed)))


@cache
def codec(model: str) -> TextCodec:
    if model in VERSIONS:
        return TextCodec(tokenizer(MODELS[model]), DeepSeekTemplate(VERSIONS[model]))
    source = (ASSETS / "templates" / f"{model}.jinja").read_text()
    return TextCodec(tokenizer(MODELS[model]), ChatTemplate(source))


@cache
def golden() -> tuple[dict[str, Any], ...]:
    """Conversations with what the vendors' own code makes of them."""
    lines = (ASSETS / "golden" / "chat_golden.jsonl").read_text().splitlines()
    return tuple(map(json.loads, lines))
