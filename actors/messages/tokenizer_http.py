"""tokenizer → http."""

from __future__ import annotations

import msgspec

from dgpp.text.delta import Delta


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Request `id` was encoded and submitted: `prompt_tokens` over all its prompts."""

    id: str
    prompt_tokens: int


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """Request `id` cannot be served; the fields are an ApiError's."""

    id: str
    status: int
    message: str
    param: str | None = None
    code: str | None = None


class Deltas(msgspec.Struct, frozen=True, tag=True):
    """News of one step. `committed_ns` is the sampler's monotonic clock when it decided."""

    items: tuple[Delta, ...]
    committed_ns: int


class Encoded(msgspec.Struct, frozen=True, tag=True):
    """Packed u32 ids of the prompt that was asked for."""

    id: str
    ids: bytes


class Decoded(msgspec.Struct, frozen=True, tag=True):
    """The text that was asked for."""

    id: str
    text: str


FromTokenizer = Prepared | Rejected | Deltas | Encoded | Decoded
