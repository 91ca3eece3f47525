"""Reading a vocabulary holds the interpreter, so it is announced, and done before anything is
served: a first constrained request once took its actor's heart-beat for longer than it may stop."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import guidance, tokenizer
from actors.guidance import Guidance
from actors.tokenizer import TokenizerActor

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"


class Context:
    """Records what is announced, and whether blocking work runs under it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.under: dict[Any, str] = {}
        self._now = ""

    @contextlib.contextmanager
    def loading(self, what: str) -> Any:
        self.said.append(what)
        self._now = what
        yield
        self._now = ""

    async def run_blocking(self, work: Any, *given: Any) -> Any:
        self.under[work.__name__] = self._now
        return work(*given)


@pytest.mark.parametrize("text", [True, False])
def test_both_readers_of_the_vocabulary_announce_it_at_their_start(text, monkeypatch):
    boot = SimpleNamespace(
        text=text, model_directory=str(TINY), limits=SimpleNamespace(vocab_size=479)
    )
    context = Context()
    asyncio.run(Guidance(context, boot).start())  # type: ignore[arg-type]
    actor = TokenizerActor.__new__(TokenizerActor)
    actor.context, actor.boot = context, boot  # type: ignore[assignment]
    monkeypatch.setattr(tokenizer, "load_codec", lambda _boot: guidance.TextCodec.load(TINY))
    asyncio.run(actor.start())
    told = "the vocabulary for grammars"
    assert context.said == ([told] if text else []) + ["the tokenizer"] + ([told] if text else [])
    if text:
        assert context.under["load_guides"] == context.under["load_grammars"] == told
