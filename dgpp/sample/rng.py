"""The counter-based generator: a draw depends on the request's seed and its number alone."""

from __future__ import annotations

_MASK = 0xFFFF_FFFF_FFFF_FFFF


def splitmix64(x: int) -> int:
    """One step of SplitMix64 as a pure function of an unsigned 64-bit `x`."""
    x = (x + 0x9E37_79B9_7F4A_7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return x ^ (x >> 31)


def draw(seed: int, counter: int) -> int:
    """Draw number `counter` of the stream `seed`, an unsigned 64-bit number."""
    return splitmix64(splitmix64(counter) ^ (seed & _MASK))


def uniform(seed: int, counter: int) -> float:
    """Draw number `counter` as a multiple of 2^-53 in [0, 1)."""
    return (draw(seed, counter) >> 11) * 2.0**-53
