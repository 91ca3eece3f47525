"""Options that take whole numbers, one or several."""

from __future__ import annotations

from dgpp.config.key import leaves
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError

MOST = 10**9 - 1
"""Tokens or rows that are asked for at most."""


def numbers(flag: str, text: str, least: int, most: int) -> tuple[int, ...]:
    """ "8,1,16" as numbers, spaces beside the commas passed over. Raises ConfigError naming the
    flag, the range and the part that is no number of it."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not _within(part, least, most):
            said = f"expected integers in {least}..{most} separated by commas"
            raise ConfigError(f"{flag}: {said}, got {part[:24]!r}")
    return tuple(map(int, parts))


def number(flag: str, text: str, least: int, most: int) -> int:
    """`text` as a number. Raises ConfigError naming the flag and the range."""
    if not _within(text, least, most):
        said = f"expected an integer in {least}..{most}"
        raise ConfigError(f"{flag}: {said}, got {text[:24]!r}")
    return int(text)


def _within(text: str, least: int, most: int) -> bool:
    # Python does not read numbers of thousands of digits.
    known = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    return known and least <= int(text) <= most


def whole_numbers(flag: str, text: str, most: int = MOST) -> tuple[int, ...]:
    """`numbers` from 1 on, ascending, each once."""
    return tuple(sorted(set(numbers(flag, text, 1, most))))


def most_of(path: str) -> int:
    """The largest number that the key `path` takes, for an option that sets it."""
    most = leaves(Settings)[path].key.high
    assert isinstance(most, int)
    return most
