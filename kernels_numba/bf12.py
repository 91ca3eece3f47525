"""bf16 in twelve bits, losslessly: exponents of a row are stored relative to the row's own window.

Sixteen values take 24 bytes: sixteen bytes of sign and mantissa, then eight of exponents, two a
byte, the even element in the low half. An exponent of 0 … 14 is above the window's base; 15 says
that the value stands elsewhere. Each row has a header of uint16: base, number of escapes, and
(column, bf16 bits) of each escape, columns ascending. A row with more than MOST_ESCAPES has base
RAW and all its bf16 bits.
"""

from __future__ import annotations

WINDOW = 15
MOST_ESCAPES = 64
RAW = 0xFFFF
RAW_SHARE = 8
"""A matrix of which more than one row in RAW_SHARE would be raw is better left in bf16."""
MOST_COLUMNS = 1 << 16
