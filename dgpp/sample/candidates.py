"""What an engine hands to the sampler for the rows of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Candidates:
    """The exact head of each row's distribution, R rows of at most K ids.

    ids      int32 [R, K]    in canonical order: logit descending, then id ascending; -1 beyond held
    logits   float32 [R, K]  after penalties, bias and mask, before temperature
    held     int32 [R]       how many of K are filled
    present  int32 [R]       how many ids of the whole vocabulary the mask left
    lse      float64 [R]     log Σ exp(logit / T) over all present ids, T = 1 where greedy
    drafts   int32 [R]       the token fed after this row on a multi-token step, -1 at its end
    picks    int32 [R]       the engine's own pick, which a `FED` row of the next step feeds: the
                             sampler's token wherever the candidates decide it, else -1
    """

    ids: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]
    held: npt.NDArray[np.int32]
    present: npt.NDArray[np.int32]
    lse: npt.NDArray[np.float64]
    drafts: npt.NDArray[np.int32]
    picks: npt.NDArray[np.int32]

    def arrays(self) -> list[npt.NDArray[np.generic]]:
        """The fields in declaration order, the form in which they cross a channel."""
        return [
            self.ids,
            self.logits,
            self.held,
            self.present,
            self.lse,
            self.drafts,
            self.picks,
        ]


@dataclass(slots=True)
class TableChanges:
    """What became of a slot's counts and bias: `opening` is the number of the choice that holds
    the slot, `ids` those whose entries have changed since it took it, oldest first."""

    opening: int = 0
    ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SlotTables:
    """Per-slot adjustments that the engine applies: counts and bias from the plans it gets, masks
    from the sampler.

    counts   int32 [slots, V]             occurrences of each id in prompt and fed tokens
    bias     float32 [slots, V]           added after the penalties
    mask     uint32 [slots, D, ceil(V/32)] allowed ids, bit i of word w is id 32 w + i;
                                          row d is the state after d accepted drafts
    masked   int32 [slots]                1 where `mask` applies
    changes  of each slot                 empty where nobody keeps account
    """

    counts: npt.NDArray[np.int32]
    bias: npt.NDArray[np.float32]
    mask: npt.NDArray[np.uint32]
    masked: npt.NDArray[np.int32]
    changes: Sequence[TableChanges] = ()
