"""How far another machine's clock is from this one's, as far as questions and answers tell."""

from __future__ import annotations

import math


class ClockGap:
    """The true gap (seconds; positive: the other one is ahead) lies between `least` and `most`.

    An answer says what the other clock showed some time between question and answer.
    """

    def __init__(self) -> None:
        self.least = -math.inf
        self.most = math.inf

    def narrow(self, before: float, now: float, after: float) -> None:
        """The other clock showed `now` while this one went from `before` to `after`."""
        least, most = now - after, now - before
        if max(least, self.least) > min(most, self.most):
            # One of the two clocks was set meanwhile: what was known of it no longer holds.
            self.least, self.most = least, most
        else:
            self.least, self.most = max(least, self.least), min(most, self.most)

    @property
    def sure(self) -> float:
        """At least so far apart they are, 0 where they may be alike."""
        if self.least <= 0 <= self.most:
            return 0.0
        return self.least if self.least > 0 else self.most

    @property
    def likely(self) -> float:
        """The middle of what is possible, 0 where the clocks may be alike."""
        return (self.least + self.most) / 2 if self.sure else 0.0
