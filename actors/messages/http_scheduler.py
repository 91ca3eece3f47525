"""http → scheduler."""

from __future__ import annotations

import msgspec


class Cancel(msgspec.Struct, frozen=True):
    """Nobody waits for request `id` any more: end all its choices, in whatever phase."""

    id: str
