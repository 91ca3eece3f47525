"""What a step decided: the sampler's answer, and why a request ends."""

from __future__ import annotations

import enum

import msgspec


class Finish(enum.IntEnum):
    """Why a request left its slot. The ordinals stand in operation streams and never change."""

    NONE = 0
    EOS = 1
    LENGTH = 2
    CANCELLED = 3
    POOL_EXHAUSTED = 4
    STOP = 5


class SlotVerdict(msgspec.Struct, frozen=True, array_like=True):
    """Tokens committed for `slot` by one step, already cut at an end token or the length limit.

    `finish` is EOS or LENGTH when the last of `tokens` ends the request, or nothing may follow what
    it has, else NONE. `fed` says that the engine picked the last of `tokens` itself, so that a
    `FED` row of the next step fed it; where it did not, such a row is void. A void row, and any row
    of a request that has ended, has no tokens.
    """

    slot: int
    tokens: tuple[int, ...]
    finish: Finish = Finish.NONE
    fed: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """One per Plan, also when it sampled nothing."""

    step: int
    slots: tuple[SlotVerdict, ...] = ()


def commit(
    tokens: list[int], produced: int, max_tokens: int, stop_ids: tuple[int, ...]
) -> tuple[tuple[int, ...], Finish]:
    """Cut one step's `tokens` at the first end token (kept) or at the length limit.

    `produced` is how many tokens the request had before this step. The one rule by which the
    sampler, the scheduler and the simulator agree on what a step committed.
    """
    kept = tokens[: max_tokens - produced]
    for index, token in enumerate(kept):
        if token in stop_ids:
            return tuple(kept[: index + 1]), Finish.EOS
    finish = Finish.LENGTH if produced + len(kept) >= max_tokens else Finish.NONE
    return tuple(kept), finish
