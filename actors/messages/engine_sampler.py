"""engine → sampler. The arrays lie in the channel's slots beside the frame."""

from __future__ import annotations

import msgspec

from dgpp.sample.scored import ScoredPrompt


class Selected(msgspec.Struct, frozen=True, tag=True):
    """Step `step`'s candidates; arrays: the fields of `Candidates` in declaration order."""

    step: int


class FullRow(msgspec.Struct, frozen=True, tag=True):
    """A row that `WantRow` named; arrays: float32 [vocab], adjusted, -inf where masked."""

    step: int
    row: int


class Scored(msgspec.Struct, frozen=True, tag=True):
    """What step `step` found of prompts; comes before its candidates, where there is anything."""

    step: int
    prompts: tuple[ScoredPrompt, ...]


FromEngine = Selected | FullRow | Scored
