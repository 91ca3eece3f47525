"""What every role of a rank is told when it starts."""

from __future__ import annotations

import msgspec

from actors.journal import JournalLinks
from dgpp.config.settings import Settings
from dgpp.sched.limits import EngineLimits
from dgpp.serve.served import ServedModel


class Lane(msgspec.Struct, frozen=True):
    """A device of this node that the RoCE bus uses, and the entry of its address table."""

    device: str
    gid: int


class BusBoot(msgspec.Struct, frozen=True):
    """A rank's end of the RoCE bus. `host` is where rank 0 listens at ports.fabric (on rank 0 the
    address it binds), `token` what proves a rank there."""

    lanes: tuple[Lane, ...]
    host: str = ""
    token: bytes = b""


class Boot(msgspec.Struct, frozen=True):
    """One deployment on one rank, resolved: nothing in it is looked up or decided again.

    `model_directory` holds the checkpoint and the tokenizer; without a tokenizer `text` is false.
    `config_path` is the model's config.json. `backend` is the engine that was chosen, never "auto";
    `threads` are the CPU backend's, `device` is the CUDA backend's. `journal` is how this rank
    speaks with the others, None in a world of one; `bus` how it sums with them, None where that is
    not over RoCE.
    """

    settings: Settings
    rank: int
    limits: EngineLimits
    model_directory: str
    config_path: str
    text: bool
    served: ServedModel
    backend: str
    threads: int
    device: int
    version: str
    log_json: bool = False
    journal: JournalLinks | None = None
    bus: BusBoot | None = None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def decode_boot(data: bytes) -> Boot:
    """The Boot that `Boot.encode` made."""
    return msgspec.msgpack.decode(data, type=Boot)
