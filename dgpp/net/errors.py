"""What can go wrong between ranks. Each error names the rank and the limit."""

from __future__ import annotations

from dgpp.errors import DgppError


class CollectiveError(DgppError):
    """A collective cannot complete; the world ends."""

    exit_status = 2


class PeerAbsentError(CollectiveError):
    """A rank did not join within the rendezvous time."""

    exit_status = 1


class PeerSilentError(CollectiveError):
    """A rank is dead or stopped: its heart-beat stands still."""


class PeerLateError(CollectiveError):
    """A rank lives and does not come to a collective."""


class PeerLeftError(CollectiveError):
    """A rank has closed its end, or says what broke it, while another one waits for it."""


class CollectiveMismatchError(CollectiveError):
    """Two ranks are not at the same collective: another kind, another size, another world."""
