"""Options that take several numbers."""

from __future__ import annotations

from dgpp.config.key import leaves
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError

MOST = 10**9 - 1
"""Tokens or rows that are asked for at most."""


def numbers(flag: str, text: str, least: int, most: int) -> tuple[int, ...]:
    """ "8,1,16" as numbers, spaces beside the commas passed over. Raises ConfigError naming the
    flag, the range and the part that is no number of it."""
    digits = len(str(most))
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        # Python does not read numbers of thousands of digits.
        known = part.isascii() and part.isdigit() and len(part) <= digits
        if not known or not least <= int(part) <= most:
            said = f"expected integers in {least}..{most} separated by commas"
            raise ConfigError(f"{flag}: {said}, got {part[:24]!r}")
    return tuple(map(int, parts))


def whole_numbers(flag: str, text: str, most: int = MOST) -> tuple[int, ...]:
    """`numbers` from 1 on, ascending, each once."""
    return tuple(sorted(set(numbers(flag, text, 1, most))))


def most_of(path: str) -> int:
    """The largest number that the key `path` takes, for an option that sets it."""
    most = leaves(Settings)[path].key.high
    assert isinstance(most, int)
    return most
