"""From the queue to slots: who comes next, with which blocks, and when the engine is told."""

from __future__ import annotations

from collections.abc import Iterable

from dgpp.sched.choice import Choice, Phase
from dgpp.sched.memory import Memory
from dgpp.sched.outcomes import Admitted, Outcome
from dgpp.sched.plan import Open
from dgpp.sched.prompts import Prompts
from dgpp.sched.slots import SlotPool
from dgpp.sched.waiting import WaitingQueue

OPENED_PROMPT_BYTES = 16 << 20
"""A plan that opens prompts of this much opens no more: plans are messages of a bounded size."""
SHARING_LOOKUPS = 4
"""Queued prompts that are looked up, oldest first, where none fits without sharing."""


class Seating:
    """Gives slots and blocks to queued choices, as long as one fits."""

    def __init__(self, slots: SlotPool, memory: Memory, prompts: Prompts) -> None:
        self.waiting = WaitingQueue()
        self.memory = memory
        self.admitted = 0
        self.cached_tokens = 0
        self._slots = slots
        self._prompts = prompts
        # False while nothing has changed since an admission last found that nothing fits.
        self._changed = False
        # What this tick's plan copies from could not be evicted; the next tick's can.
        self._again = False

    def changed(self) -> None:
        """Somebody came or left: it is worth looking again."""
        self._changed = True

    def wake(self) -> None:
        """The disk has answered."""
        self.waiting.wake()
        self._changed = True

    def begin_tick(self) -> None:
        self._changed, self._again = self._changed or self._again, False

    def openings(self) -> int:
        """Slots that newcomers can have at once: none while some wait who may come first."""
        if self._next() is not None:
            return 0
        return min(self._slots.free, self.waiting.patience)

    def has_next(self) -> bool:
        """Whether the next tick admits somebody, as things stand."""
        return self._changed and self._slots.free > 0 and self._next() is not None

    def admit(self, outcomes: list[Outcome]) -> tuple[Open, ...]:
        """Seat whoever fits, and open those who begin to read."""
        opens = [self._open(choice, outcomes) for choice in self._late()]
        prompt_bytes = sum(len(opened.request.prompt) for opened in opens)
        while self._changed and self._slots.free and prompt_bytes < OPENED_PROMPT_BYTES:
            choice = self._next()
            if choice is not None and self.memory.recall(choice):
                choice.waits = True
                continue
            if choice is None or not self._seat(choice):
                self._changed = False
                break
            if choice.follows is None:
                prompt_bytes += len(choice.submit.prompt)
                opens.append(self._open(choice, outcomes))
        return tuple(opens)

    def _late(self) -> Iterable[Choice]:
        """Those whose wait for a common beginning is over."""
        for choice in self._prompts.ready():
            self.memory.share(choice)
            yield choice

    def _next(self) -> Choice | None:
        waiting = self.waiting
        choice = waiting.pick(self.memory.available)
        if choice is None and self.memory.cache is not None and self._slots.free:
            for queued in waiting.first(SHARING_LOOKUPS):
                if not queued.waits and self.memory.fits_by_sharing(queued):
                    return queued
        return choice

    def _seat(self, choice: Choice) -> bool:
        match = self.memory.find(choice)
        if self._prompts.follow(choice, match):
            match = None
        if not self.memory.seat(choice, match):
            if choice.follows is not None:
                self._prompts.drop(choice)
                choice.follows = None
            self._again = True
            return False
        self.waiting.admit(choice)
        choice.slot = self._slots.take(choice)
        choice.phase = Phase.PREFILLING
        self.admitted += 1
        return True

    def _open(self, choice: Choice, outcomes: list[Outcome]) -> Open:
        choice.opened = True
        self._prompts.reading.append(choice)
        self.cached_tokens += choice.cached
        outcomes.append(
            Admitted(
                choice.submit.id,
                choice.slot,
                choice.prompt_tokens,
                choice.cached,
                len(choice.blocks),
                choice.decoded,
                choice.missed,
            )
        )
        return Open(
            choice.slot,
            choice.submit,
            choice.blocks,
            choice.cached,
            choice.arrival,
            choice.decoded,
            choice.restore,
            choice.tail,
        )
