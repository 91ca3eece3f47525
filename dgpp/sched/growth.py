"""How much of its answer a choice holds blocks for: all of it, or a window at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dgpp.errors import ConfigError
from dgpp.sched.admission import blocks_needed
from dgpp.sched.choice import Choice
from dgpp.sched.limits import EngineLimits
from dgpp.sched.memory import Memory
from dgpp.sched.operations import OperationStream
from dgpp.sched.request import Submit

FULL, GROW = "full", "grow"


class Growth:
    """Admission `full` reserves a whole footprint, so that nobody waits for blocks once seated.

    Admission `grow` reserves the prompt and a window, and another window whenever the next step
    would write beyond. Where no block is left, somebody gives way: of the seated choices the one of
    least priority, of these the youngest.
    """

    def __init__(
        self,
        limits: EngineLimits,
        memory: Memory,
        operations: OperationStream,
        mode: str,
        window: int,
    ) -> None:
        if mode not in (FULL, GROW):
            raise ConfigError(f'engine.admission = "{mode}": known are "{FULL}" and "{GROW}"')
        self.grows = mode == GROW
        self.reservations = 0
        self._limits = limits
        self._memory = memory
        self._operations = operations
        self._step = 1 + limits.max_drafts
        self._window = max(window, self._step + 1)

    def first(self, submit: Submit) -> int:
        """The blocks that a choice begins with."""
        answer = submit.max_tokens
        if self.grows:
            answer = min(answer, self._window)
        return blocks_needed(self._limits, submit.prompt_tokens, answer)

    def extend(self, seated: Sequence[Choice], give_way: Callable[[Choice], None]) -> None:
        """Before a step: every choice that has a row has blocks for it, or waits (`stalled`).

        `give_way` ends a choice none of whose rows is out. One that has rows out is `shed`: it gets
        no more and ends when they are decided; who needs its blocks waits as long.
        """
        for choice in sorted(seated, key=lambda c: c.arrival):
            choice.stalled = False
            if choice.slot < 0 or not choice.has_row:
                continue
            while not self._covers(choice):
                victim = self._victim(seated)
                if victim.shed or victim.ahead:
                    victim.shed = choice.stalled = True
                    break
                give_way(victim)
                if victim is choice:
                    break

    def _covers(self, choice: Choice) -> bool:
        """Whether the choice has, or got, blocks for its next row."""
        held = len(choice.blocks)
        size = self._limits.block_tokens
        whole = choice.prompt_tokens + choice.submit.max_tokens
        need = min(whole, choice.prompt_tokens + choice.produced + choice.ahead - 1 + self._step)
        if need <= held * size:
            return True
        for tokens in (min(whole, max(need, held * size + self._window)), need):
            if self._memory.grow(choice, -(-tokens // size) - held):
                self.reservations += 1
                self._operations.grow(choice.submit.id, len(choice.blocks) * size)
                return True
        return False

    def _victim(self, seated: Sequence[Choice]) -> Choice:
        """Who gives way; one that is about to goes first, so that no two do for one need."""
        held = [choice for choice in seated if choice.slot >= 0]
        return min(held, key=lambda c: (not c.shed, c.submit.priority, -c.arrival))
