"""What can go wrong on the RoCE bus. Each error names the peer or device and what to do."""

from __future__ import annotations

from dgpp.net.errors import CollectiveError


class BusError(CollectiveError):
    """The bus cannot go on."""


class LibraryError(BusError):
    """The verbs library is not here, or does not fit the system's libibverbs."""

    exit_status = 1


class DeviceError(BusError):
    """A device cannot be opened or has no room for what the bus needs."""

    exit_status = 1


class PostError(BusError):
    """A queue pair took no more work: its queue is full, or it is broken."""


class PeerUnreachableError(BusError):
    """A peer's adapter stopped answering: the process died, its machine or the cable between."""


class PeerNotReadyError(BusError):
    """A peer answers and has no receive posted."""


class RemoteAccessError(BusError):
    """A peer refused access to its memory: another key, or beyond what it registered."""


class LocalAccessError(BusError):
    """Work named memory of this rank that is not registered, or more than fits."""


class QueueBrokenError(BusError):
    """Work was thrown away since its queue pair had failed before."""


class ProtocolError(BusError):
    """A peer filled, announced or gave back slots otherwise than agreed."""


class PollerError(BusError):
    """This rank's own poller is gone or stands still."""


class BusStartError(BusError):
    """The poller could not bring the bus up; its own words say why."""

    exit_status = 1
