"""What the scheduler tells those who wait: a choice was admitted, has begun, was refused, ended.

Every submitted choice gets exactly one terminal outcome, Refused or Retired.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dgpp.sched.verdict import Finish


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The choice left the queue for `slot` and holds `blocks` blocks.

    `cached_tokens` of its prompt need not be read, `decoded_tokens` of them as decode wrote them;
    `missed` says why there are no more, empty where there could be none.
    """

    id: str
    slot: int
    prompt_tokens: int
    cached_tokens: int
    blocks: int
    decoded_tokens: int = 0
    missed: str = ""


class Began(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The prompt is read and the first token committed."""

    id: str
    slot: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The choice never entered the queue; `code` and `message` are fit for the client."""

    id: str
    code: str
    message: str


class Retired(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The choice ended for `reason` after `tokens` committed tokens; its blocks are free."""

    id: str
    reason: Finish
    tokens: int


class Remark(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Something that no choice is told but operators should know."""

    text: str


Outcome: TypeAlias = Admitted | Began | Refused | Retired | Remark
