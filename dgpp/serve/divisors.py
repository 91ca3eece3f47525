"""`multipleOf` in schemas: what it costs to hold numbers to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

MOST = 10_000
"""The least common multiple of a schema's divisors, without their decimal points: an automaton that
divides has as many states."""


def too_fine(schema: Any) -> bool:
    """Whether the divisors that `schema` asks for cannot be enforced within a time that anybody
    waits."""
    together = 1
    for divisor in _divisors(schema):
        together = math.lcm(together, divisor)
        if together > MOST:
            return True
    return False


def _divisors(schema: Any) -> Iterator[int]:
    if isinstance(schema, dict):
        value = schema.get("multipleOf")
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            digits = Decimal(str(value)).normalize().as_tuple().digits
            yield int("".join(map(str, digits))) or 1
        for inner in schema.values():
            yield from _divisors(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _divisors(inner)
