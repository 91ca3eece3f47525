"""http → tokenizer."""

from __future__ import annotations

import msgspec

from dgpp.serve.request import GenerationRequest


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Render, encode and submit `request`; `seed` is its own or a random one."""

    request: GenerationRequest
    seed: int


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The client of request `id` is gone: drop its output, and its submission if not yet sent."""

    id: str


class Encode(msgspec.Struct, frozen=True, tag=True):
    """The ids of `request`'s prompt, and nothing more."""

    request: GenerationRequest


class Decode(msgspec.Struct, frozen=True, tag=True):
    """The text of packed u32 `ids`."""

    id: str
    ids: bytes


FromHttp = Prepare | Forget | Encode | Decode
