"""What can go wrong between actors. Each error names the channel or the actor, and the limit."""

from __future__ import annotations

from dgpp.errors import DgppError, WorldFailedError


class TopologyError(DgppError):
    """Roles and channels do not fit together, or a message type cannot travel."""


class FenceUnavailableError(DgppError):
    """This machine offers no memory fence; without one, shared memory has no order."""


class ChannelError(WorldFailedError):
    """A channel was used against its contract. The message names the channel."""


class MessageTooLargeError(ChannelError):
    """A message exceeds the channel's stated maximum; bulk data belongs into slots."""


class MessageTypeError(ChannelError):
    """A message is none of the channel's message types."""


class ArraysError(ChannelError):
    """Arrays do not fit a slot, have an unsupported dtype, or the channel has no slots."""


class RingCorruptError(ChannelError):
    """The shared indices or a frame's length make no sense: the peer died or ran wild."""


class PeerGoneError(ChannelError):
    """The process at the other end is gone; nothing more arrives or is read."""
