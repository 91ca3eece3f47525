"""What can be wrong with a grammar."""

from __future__ import annotations

from dgpp.errors import DgppError


class GrammarError(DgppError, ValueError):
    """A grammar that cannot be compiled, or whose work exceeds its limits."""


class GrammarBrokenError(DgppError):
    """A committed token that its own mask forbade: the masks and the tokens disagree."""

    exit_status = 2
