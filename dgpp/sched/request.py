"""What the scheduler is asked for, and the record that carries it to every rank."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.cache.cold_ops import ColdDone
from dgpp.sample.params import SamplingParams

HIGHEST_PRIORITY = 100
"""Priorities run from its negative to it; 0 is usual."""

Ids = npt.NDArray[np.uint32]


def pack_ids(ids: npt.ArrayLike) -> bytes:
    """Token ids as little-endian u32 bytes, the form in which prompts cross process borders."""
    return np.asarray(ids, dtype="<u4").tobytes()


def pack_list(ids: list[int]) -> bytes:
    """`pack_ids` of a list, which for a few hundred ids costs a fraction of the array's time."""
    return struct.pack(f"<{len(ids)}I", *ids)


def unpack_ids(packed: bytes) -> Ids:
    """Read-only view over `packed` as u32 token ids."""
    return np.frombuffer(packed, dtype="<u4")


class Submit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One choice of one request: a prompt to continue by at most `max_tokens` tokens, or, where
    that is 0, only to read.

    `id` is `<request>-<choice>`, unique among live requests. `prompt` is packed u32 ids
    (`pack_ids`), at least one. `seed` is an unsigned 64-bit key of the counter-based generator.
    `stop_ids` are the ids that end the text (empty when the request ignores them). `grammar`, where
    there is one, is what the answer must follow, as `dgpp.grammar` writes it. `boundaries` are the
    packed positions, ascending and inside the prompt, where a role's text begins. With `no_cache`
    the prompt is neither looked up in the prefix cache nor left there. `scored` asks how likely the
    prompt's own tokens were, and for that many likelier ids beside each (−1: no); what the cache
    holds was never scored, so such a prompt is read whole.
    """

    id: str
    prompt: bytes
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    priority: int = 0
    grammar: str = ""
    boundaries: bytes = b""
    no_cache: bool = False
    scored: int = -1

    @property
    def boundary_positions(self) -> list[int]:
        if not self.boundaries:
            return []
        positions: list[int] = unpack_ids(self.boundaries).tolist()
        return positions

    @property
    def prompt_ids(self) -> Ids:
        return unpack_ids(self.prompt)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // 4

    @property
    def uses_cache(self) -> bool:
        """Whether the prefix cache is asked for the prompt and may keep it."""
        return not self.no_cache and self.scored < 0

    @property
    def runs_ahead(self) -> bool:
        """Whether a row may be planned before the token it feeds is known to the host: nothing
        that the host adds to the row depends on that token, as penalties and masks do."""
        return not (self.sampling.penalised or self.grammar)


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tick's input, equal on every rank: what arrived, was cancelled, or met a stop string.

    `submits` holds whole groups: the choices of one request arrive together or not at all.
    `cancels` and `stops` are Submit ids, `cold` what operations of the disk tier came to.
    """

    tick: int
    submits: tuple[Submit, ...] = ()
    cancels: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    cold: tuple[ColdDone, ...] = ()
