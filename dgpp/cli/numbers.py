"""Options that take several numbers."""

from __future__ import annotations

from dgpp.errors import ConfigError

MOST = 10**9 - 1
"""Tokens or rows that are asked for at most."""


def numbers(flag: str, text: str, least: int, most: int) -> tuple[int, ...]:
    """ "8,1,16" as numbers. Raises ConfigError naming the flag and the range."""
    digits = len(str(most))
    parts = text.replace(" ", "").split(",")
    for part in parts:
        # Python does not read numbers of thousands of digits.
        known = part.isascii() and part.isdigit() and len(part) <= digits
        if not known or not least <= int(part) <= most:
            said = f"expected integers in {least}..{most} separated by commas"
            raise ConfigError(f"{flag}: {said}, got {part[:24]!r}")
    return tuple(map(int, parts))


def whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    """`numbers` from 1 on, ascending, each once."""
    return tuple(sorted(set(numbers(flag, text, 1, MOST))))
