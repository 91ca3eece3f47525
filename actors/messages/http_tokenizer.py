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


FromHttp = Prepare | Forget
