"""Where ranks of one host find one another's words in shared memory; what a value is on its way."""

from __future__ import annotations

LINE_BYTES = 256
"""A rank's words: those that it writes, and apart from them the one that sleepers write."""
GENERATION, TAGS, SLEEPERS = 0, 16, 128
"""Offsets in a line: last published collective, the tags of the last two, ranks asleep on it."""
F32_WIRE, BF16_WIRE = 4, 2
"""Bytes of a value between ranks."""
CELL_BYTES = 64
"""What announces a message of the RoCE bus, or gives its slot back."""
