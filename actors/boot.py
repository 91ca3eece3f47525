"""What every role of a rank is told when it starts."""

from __future__ import annotations

import msgspec

from actors.journal import JournalLinks
from dgpp.config.settings import Settings
from dgpp.engine.base import EngineLimits
from dgpp.serve.served import ServedModel


class Boot(msgspec.Struct, frozen=True):
    """One deployment on one rank, resolved: nothing in it is looked up or decided again.

    `model_directory` holds the checkpoint and the tokenizer; without a tokenizer `text` is false.
    `config_path` is the model's config.json. `backend` is the engine that was chosen, never "auto";
    `threads` are the CPU backend's, `device` is the CUDA backend's. `journal` is how this rank
    speaks with the others, None in a world of one.
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

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def decode_boot(data: bytes) -> Boot:
    """The Boot that `Boot.encode` made."""
    return msgspec.msgpack.decode(data, type=Boot)
