"""What a rank has read of a checkpoint, so that ranks can find out whether they hold one model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 8


class Account:
    """Bytes of codes and vectors: `total` in the checkpoint, `read` by this rank, `replicated` read
    by every rank alike, whose `digests` are kept by name.

    Scales are not counted: what a cut goes through is read on both sides.
    """

    def __init__(self) -> None:
        self.total = 0
        self.read = 0
        self.replicated = 0
        self.digests: dict[str, bytes] = {}

    def add(
        self, name: str, whole: int, own: int, alike: Sequence[npt.NDArray[Any]] | None
    ) -> None:
        """`own` bytes of `whole`; `alike` are the tensors that every rank reads, or None."""
        self.total += whole
        self.read += own
        if alike is not None:
            self.replicated += whole
            digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
            for array in alike:
                digest.update(np.ascontiguousarray(array).data)
            self.digests[name] = digest.digest()
