"""Breaches of the scheduler's contract by the code around it; no client's request can cause one.

The front end checks everything a client sends, so each of these is a bug of ours: raised before
any state has changed, naming the request or the step, and ending the world.
"""

from __future__ import annotations

from dgpp.errors import DgppError


class SubmitContractError(DgppError, ValueError):
    """A Submit that the front end must not let pass: duplicate live id, empty prompt, …"""


class StepOrderError(DgppError, ValueError):
    """`tick` while a plan awaits its verdict, or `apply` of a verdict that no plan awaits."""


class VerdictContractError(DgppError, ValueError):
    """A verdict that does not fit its plan: wrong slots, no token, too many tokens."""
