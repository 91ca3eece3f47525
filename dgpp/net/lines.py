"""What every rank says of itself where all look: a line of words in shared memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

_BEAT, _PID, _LEFT, _BLAMED = range(4)


class Lines:
    """A view of all ranks' lines by `rank`. Implements `dgpp.net.watch.Beats`.

    `words` are int64; those of rank r that are meant here, four, begin at word `starts[r]`. All
    zero is a rank that has not entered.
    """

    def __init__(self, words: memoryview, starts: Sequence[int], rank: int) -> None:
        self.rank, self.world = rank, len(starts)
        self._words, self._starts = words, starts

    # What this rank says -----------------------------------------------------------------------

    def enter(self) -> None:
        """Take this rank's place."""
        self._say(_BEAT, 1)
        self._say(_PID, os.getpid())

    def beat(self) -> None:
        self._say(_BEAT, self.beats(self.rank) + 1)

    def leave(self) -> None:
        self._say(_LEFT, 1)

    def blame(self, rank: int) -> None:
        """Tell the others that the world broke by `rank`."""
        self._say(_BLAMED, rank + 1)

    def _say(self, word: int, value: int) -> None:
        self._words[self._starts[self.rank] + word] = value

    # What all say ------------------------------------------------------------------------------

    def beats(self, rank: int) -> int:
        return self._told(rank, _BEAT)

    def pid(self, rank: int) -> int:
        """The process of a rank, 0 before it has entered."""
        return self._told(rank, _PID)

    def left(self, rank: int) -> bool:
        return bool(self._told(rank, _LEFT))

    def blamed(self, rank: int) -> int:
        """The rank that `rank` says broke the world, -1 for none."""
        return self._told(rank, _BLAMED) - 1

    def _told(self, rank: int, word: int) -> int:
        return self._words[self._starts[rank] + word]

    def close(self) -> None:
        """Look no more."""
        self._words.release()
