"""What can go wrong between machines. Each error names the node and says what to do."""

from __future__ import annotations

from dgpp.errors import DgppError


class ClusterError(DgppError):
    """A deployment over several processes or machines could not do what was asked."""


class UnreachableError(ClusterError):
    """A node does not answer, or does not let us in."""


class LockedError(ClusterError):
    """Another command is at work on the same deployment."""


class AlreadyUpError(ClusterError):
    """Ranks of the deployment run already."""


class StartError(ClusterError):
    """A rank did not come up; nothing was left running."""


class RecordError(ClusterError):
    """What is remembered of a rank's process cannot be read."""


class TransferError(ClusterError):
    """Files could not be sent to a node; what came is kept, and the next try goes on from there."""


class DiskFullError(TransferError):
    """A node has no room for what is sent to it; nothing of it was left there."""


class ReleaseError(ClusterError):
    """An archive is damaged or not one of ours, or a release cannot be installed."""
