"""The sampler's part in constrained answers: it keeps the grammars and sends the masks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from actors.boot import Boot
from actors.context import Context, T
from actors.messages.sampler_engine import Masks
from dgpp.errors import ConfigError
from dgpp.grammar.guides import Guides
from dgpp.grammar.vocabulary import load_grammars
from dgpp.sched.plan import Plan
from dgpp.sched.verdict import Verdict
from dgpp.text.codec import TextCodec

ENGINE = "sampler>engine"


_log = logging.getLogger("dgpp.sampler")


class Guidance:
    """Masks go out as soon as a plan is known, beside the engine's forward pass.

    The vocabulary is read at the start, since that holds the interpreter for a second and more, and
    grammars are compiled in a thread: other choices' tokens do not wait.
    """

    def __init__(self, context: Context, boot: Boot) -> None:
        self._context = context
        self._boot = boot
        self._guides: Guides | None = None
        self._opening: dict[int, asyncio.Future[None]] = {}
        self._guided: dict[int, str] = {}
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Read the vocabulary, where the model has one."""
        if not self._boot.text:
            return
        with self._context.loading("the vocabulary for grammars"):
            self._guides = await self._context.run_blocking(load_guides, self._boot)

    def prepare(self, plan: Plan) -> None:
        """Take in the plan's slots and send the masks that its step needs."""
        for slot in plan.closes:
            self._forget(slot)
        for opened in plan.opens:
            self._forget(opened.slot)
            if opened.request.grammar:
                self._guided[opened.slot] = opened.request.id
                self._opening[opened.slot] = self._context.spawn(
                    self._open(opened.slot, opened.request.grammar)
                )
        if self._guided:
            slots = tuple(slot for slot in plan.sampled_slots() if slot in self._guided)
            if slots:
                self._send(plan.step, slots)

    def advance(self, verdict: Verdict) -> None:
        """Take in what a step committed."""
        if self._guides is None:
            return
        for decided in verdict.slots:
            if decided.slot in self._guided:
                self._guides.advance(decided.slot, decided.tokens)

    @property
    def stuck(self) -> Collection[int]:
        """The slots whose answers are not complete, and cannot go on within their grammars."""
        return () if self._guides is None else self._guides.stuck.keys()

    def _forget(self, slot: int) -> None:
        if slot in self._guided:
            del self._guided[slot]
            if self._guides is not None:
                self._guides.close(slot)

    async def _open(self, slot: int, grammar: str) -> None:
        async with self._lock:
            if self._guides is None:
                raise ConfigError("a model without a tokenizer has no grammars")
            if slot in self._guided:
                await self._thread(self._guides.open, slot, grammar)
        self._opening.pop(slot, None)

    def _thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return self._context.loop.run_in_executor(None, function, *arguments)

    def _send(self, step: int, slots: tuple[int, ...]) -> None:
        waiting = [self._opening[slot] for slot in slots if slot in self._opening]
        if waiting:
            self._context.spawn(self._send_later(step, slots, waiting))
        else:
            self._post(step, slots)

    async def _send_later(
        self, step: int, slots: tuple[int, ...], waiting: list[asyncio.Future[None]]
    ) -> None:
        await asyncio.gather(*waiting)
        self._post(step, slots)

    def _post(self, step: int, slots: tuple[int, ...]) -> None:
        assert self._guides is not None
        self._context.post(ENGINE, Masks(step, slots), [self._guides.masks(slots)])
        for slot in slots:
            if slot in self._guides.stuck:
                said = (self._guided[slot], self._guides.stuck[slot])
                _log.warning("request %s is cut off: its grammar cannot go on: %s", *said)


def load_guides(boot: Boot) -> Guides | None:
    """The grammars' side of the model's vocabulary. Blocks for some seconds."""
    grammars = load_grammars(TextCodec.load(boot.model_directory))
    return None if grammars is None else Guides(grammars, boot.limits.vocab_size)
