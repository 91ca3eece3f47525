"""Whether the ranks of a world hold parts of one model: asked once, when all have read theirs."""

from __future__ import annotations

import hashlib

import numpy as np

from dgpp.errors import CheckpointError
from dgpp.models.account import Account
from dgpp.net.collective import Collective


def require_one_model(account: Account, collective: Collective) -> None:
    """Raises CheckpointError naming the first tensor that should be the same on every rank and is
    not, or the bytes that do not add up. Every rank calls it, and every rank gets the same error.
    """
    names = sorted(account.digests)
    table = np.frombuffer(b"".join(account.digests[name] for name in names), np.uint8)
    summary = hashlib.blake2b(table.tobytes(), digest_size=8)
    summary.update("\n".join(names).encode())
    own = np.frombuffer(summary.digest(), np.int64)
    counts = np.array([len(names), account.total, account.replicated, account.read], np.int64)
    told = collective.all_gather(np.concatenate([own, counts]))
    _require_alike(told[:, 1], "replicated tensors", collective)
    if (told[:, 0] != told[0, 0]).any():
        _name_the_tensor(names, table, collective)
    _require_alike(told[:, 2], "bytes in the checkpoint", collective)
    _require_alike(told[:, 3], "replicated bytes", collective)
    read, wanted = int(told[:, 4].sum()), account.total + (len(told) - 1) * account.replicated
    if read != wanted:
        each = ", ".join(f"rank {rank} {size}" for rank, size in enumerate(told[:, 4].tolist()))
        raise CheckpointError(
            f"ranks read {read} bytes of weights ({each}), {wanted} make one model of "
            f"{account.total} with {account.replicated} on every rank"
        )


def _require_alike(values: np.ndarray, what: str, collective: Collective) -> None:
    for rank, value in enumerate(values.tolist()):
        if value != values[0]:
            raise CheckpointError(
                f"rank {rank} has {value} {what}, rank 0 {values[0]}: their checkpoints differ"
            )


def _name_the_tensor(names: list[str], table: np.ndarray, collective: Collective) -> None:
    tables = collective.all_gather(table).reshape(collective.world, len(names), -1)
    for place, name in enumerate(names):
        for rank in range(collective.world):
            if (tables[rank, place] != tables[0, place]).any():
                raise CheckpointError(
                    f"tensor {name} is not the same on rank {rank} and rank 0: their checkpoints "
                    "differ"
                )
    raise CheckpointError("ranks hold replicated tensors of different names")
