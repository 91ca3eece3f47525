"""JSON out, also where a client's or a model's own values stand in it."""

from __future__ import annotations

import json
from typing import Any

import orjson


def encode(value: Any) -> bytes:
    """`value` as JSON. Integers may have any length, which orjson does not write."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
