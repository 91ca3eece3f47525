"""The scheduler's own record of one live choice, from arrival to retirement."""

from __future__ import annotations

import enum
from dataclasses import dataclass

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
    of its whole footprint. `read` counts prompt positions planned so far, `produced` the tokens
    committed, `overtaken` the younger choices admitted while this one waited.
    """

    submit: Submit
    arrival: int
    prompt_tokens: int
    need: int
    phase: Phase = Phase.QUEUED
    overtaken: int = 0
    slot: int = -1
    blocks: tuple[int, ...] = ()
    read: int = 0
    produced: int = 0
    last_token: int = -1
