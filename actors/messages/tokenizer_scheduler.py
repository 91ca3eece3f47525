"""tokenizer → scheduler."""

from __future__ import annotations

import msgspec

from dgpp.sched.request import Submit


class Arrive(msgspec.Struct, frozen=True, tag=True):
    """All choices of request `id`, to be queued or refused together."""

    id: str
    submits: tuple[Submit, ...]


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """A stop string was met in submission `id`: its later tokens are not wanted."""

    id: str


ToScheduler = Arrive | Stopped
