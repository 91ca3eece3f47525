"""Figures as aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, its columns right-aligned; the header comes first."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]


def share(value: float | None) -> str:
    """A fraction in percent, a dash where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"
