"""How one step's prefill budget is shared among the prompts being read."""

from __future__ import annotations

from collections.abc import Sequence


def share_units(needs: Sequence[int], units: int, turn: int) -> list[int]:
    """Units for each prompt, oldest first; `needs` are the units each still has to read.

    The oldest gets half (the odd unit on every other `turn`), the rest goes to the shortest
    remainder. So a prompt is read at half speed at worst once it is the oldest, a short prompt
    does not wait for a long one, and equal prompts finish one after the other, not all at the end.
    """
    given = [0] * len(needs)
    if not needs:
        return given
    given[0] = min(needs[0], (units + (turn & 1)) // 2)
    left = units - given[0]
    for index in sorted(range(len(needs)), key=lambda i: (needs[i] - given[i], i)):
        extra = min(needs[index] - given[index], left)
        given[index] += extra
        left -= extra
        if not left:
            break
    return given
