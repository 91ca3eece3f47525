"""From the form a checkpoint stores to the one a model is held in, cut for a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernels_numba.weights import FP8_BLOCK_ROWS, Form, Part

MIB = 1 << 20


def fp8_cut(stored: Part, ranges: Sequence[tuple[int, int]], span: tuple[int, int]) -> list[Part]:
    """Rows `ranges` and columns `span` of a bf16 matrix, each (first, count), in FP8.

    Blocks are those of the whole matrix, so every rank of every world has the same values; what is
    read beyond the cut is the rest of the blocks at its edges.
    """
    first, width = span
    left, wide = _blocks(first, width, stored.columns)
    columns = stored.cut_columns(left, wide)
    return [
        _fp8_rows(columns, start, count).cut_columns(first - left, width) for start, count in ranges
    ]


def _fp8_rows(stored: Part, start: int, count: int) -> Part:
    from kernels_numba.cpu.encode import fp8_part  # loads Numba, which a plan does without

    top, high = _blocks(start, count, stored.rows)
    return fp8_part(stored.cut_rows(top, high)).cut_rows(start - top, count)


def _blocks(first: int, count: int, extent: int) -> tuple[int, int]:
    """(first, count) of the whole blocks that hold them."""
    begin = first // FP8_BLOCK_ROWS * FP8_BLOCK_ROWS
    end = -(-(first + count) // FP8_BLOCK_ROWS) * FP8_BLOCK_ROWS
    return begin, min(end, extent) - begin


def packed(parts: Sequence[Part]) -> list[Part]:
    """bf16 parts of one matrix in BF12; as they are where one of them would not be smaller."""
    from kernels_numba.cpu.narrow import narrow  # loads Numba, which a plan does without

    small = [narrow(part) for part in parts]
    return [part for part in small if part is not None] if None not in small else list(parts)


@dataclass
class Change:
    """How much of a model is held in another form than it is stored in."""

    stored_bytes: int = 0
    held_bytes: int = 0

    def add(self, stored: int, held: int) -> None:
        self.stored_bytes += stored
        self.held_bytes += held


@dataclass
class Changes:
    """The changes of a model, by form and item."""

    by_form: dict[Form, dict[str, Change]] = field(default_factory=dict)

    def add(self, form: Form, item: str, stored: int, held: int) -> None:
        self.by_form.setdefault(form, {}).setdefault(item, Change()).add(stored, held)

    def notes(self, verb: str = "are") -> list[str]:
        """A line per form for the log: bf16 `verb` held so."""
        lines = []
        for form, items in self.by_form.items():
            stored = sum(change.stored_bytes for change in items.values())
            held = sum(change.held_bytes for change in items.values())
            lines.append(
                f"{', '.join(sorted(items))}: {stored / MIB:.1f} MiB of bf16 {verb} held as "
                f"{held / MIB:.1f} MiB of {form.name.lower()}"
            )
        return lines
