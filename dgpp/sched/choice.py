"""The scheduler's own record of one live choice, from arrival to retirement."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from dgpp.cache.cuts import Cut
from dgpp.cache.lease import Lease
from dgpp.sched.plan import FED, DecodeRow
from dgpp.sched.request import Submit


class Phase(enum.Enum):
    """Where a live choice stands."""

    QUEUED = enum.auto()
    PREFILLING = enum.auto()
    ACTIVE = enum.auto()


@dataclass(slots=True, eq=False)
class Choice:
    """One Submit in flight.

    `arrival` numbers all choices in the order in which records brought them. `need` is the blocks
    that it begins with. `read` counts prompt positions planned or shared so far, `produced` the
    tokens committed, which `answer` holds, `overtaken` the younger choices admitted while this one
    waited. `ahead` counts its sampled rows in plans that are out and still count; a row counts
    while the choice is on the `course` on which it was planned. `runs_ahead`: its rows may be
    planned before the token that they feed is known.

    `lease` is its place in the prefix cache, `cuts` are where its prompt is to be kept. Of its
    prompt `cached` tokens were found there, `decoded` of them written by decode; `missed` says why
    no more were. `restore` and `tail` are what the engine copies for it. While it `follows` another
    choice up to a position of the prompt that both have in common, it waits to share that.

    `shed` means that it has to give way as soon as no row of it is out, `stalled` that its next row
    waits for blocks, `waits` that something is being read back from disk; `recalled` that it once
    was for this choice.
    """

    submit: Submit
    arrival: int
    prompt_tokens: int
    need: int
    runs_ahead: bool = True
    phase: Phase = Phase.QUEUED
    overtaken: int = 0
    slot: int = -1
    blocks: tuple[int, ...] = ()
    read: int = 0
    produced: int = 0
    last_token: int = -1
    ahead: int = 0
    course: int = 0
    answer: list[int] = field(default_factory=list)
    lease: Lease | None = None
    cuts: list[Cut] = field(default_factory=list)
    cached: int = 0
    decoded: int = 0
    missed: str = ""
    restore: int = -1
    tail: int = -1
    follows: tuple[Choice, int] | None = None
    opened: bool = False
    shed: bool = False
    stalled: bool = False
    waits: bool = False
    recalled: bool = False

    @property
    def is_read(self) -> bool:
        """Whether its whole prompt is planned."""
        return self.read == self.prompt_tokens

    @property
    def has_row(self) -> bool:
        """Whether the next plan has a row for it: its prompt is read and its limit not reached."""
        if self.shed or self.stalled or not self.is_read:
            return False
        return self.produced + self.ahead < self.submit.max_tokens

    @property
    def fed(self) -> int:
        """Tokens that were fed and committed: all but the last."""
        return self.prompt_tokens + self.produced - 1

    def next_row(self) -> DecodeRow:
        """Its row of the next plan, which counts from now on."""
        token = FED if self.ahead else self.last_token
        row = DecodeRow(self.slot, self.prompt_tokens + self.produced + self.ahead - 1, token)
        self.ahead += 1
        return row

    def turn(self) -> None:
        """Leave the course: its rows in plans that are out are void."""
        self.course += 1
        self.ahead = 0
