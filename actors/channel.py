"""Typed messages over a ring, arrays beside them in slots. The two ends of one channel."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from actors.errors import ArraysError, MessageTypeError, RingCorruptError
from actors.ring import RingReader, RingStatistics, RingWriter, Wake
from actors.slots import Arrays, Packing, SlotReader, SlotWriter
from actors.topology import ChannelSpec, decoder, message_types

__all__ = ["Arrays", "ChannelStatistics", "Receiver", "Sender"]

_PREFIX = struct.Struct("=I")
_NO_SLOT = _PREFIX.pack(0)
NO_ARRAYS = Arrays()
"""What comes with a message that brings none."""


class ChannelStatistics(msgspec.Struct, frozen=True):
    """One end's ring counts; `pending` messages wait in this process, `free_slots` slots."""

    ring: RingStatistics
    pending: int
    free_slots: int


class _Pending:
    """A message that found no room: its bytes, and its arrays until a slot is free."""

    __slots__ = ("arrays", "body", "frame", "packing")

    def __init__(
        self, body: bytes, packing: Packing | None, arrays: Sequence[npt.NDArray[Any]]
    ) -> None:
        self.body = body
        self.packing = packing
        self.arrays = arrays
        self.frame = None if packing is not None else _NO_SLOT + body


class Sender:
    """The producer's end. A frame is the u32 slot number plus one (0: no arrays) and msgpack.

    `unsent` is what waits for room, oldest first; others only look whether it is empty.
    """

    def __init__(self, spec: ChannelSpec, ring: RingWriter, slots: SlotWriter | None) -> None:
        self.spec = spec
        self.name = spec.name
        self._ring = ring
        self._slots = slots
        self._types = frozenset(message_types(spec.messages))
        self._encode = msgspec.msgpack.Encoder().encode
        self.unsent: deque[_Pending] = deque()

    @property
    def congested(self) -> bool:
        """True while messages wait for room."""
        return bool(self.unsent)

    def post(self, message: Any, arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
        """Send, or queue behind what waits for room. Never blocks.

        Raises MessageTypeError, MessageTooLargeError or ArraysError, and then nothing was sent.
        """
        if type(message) not in self._types:
            raise MessageTypeError(
                f"channel {self.name}: {type(message).__name__} is none of its messages"
            )
        body = self._encode(message)
        packing = None
        if arrays:
            if self._slots is None:
                raise ArraysError(f"channel {self.name} has no slots for arrays")
            packing = self._slots.plan(arrays)
            self._ring.check_size(_PREFIX.size + len(body))
        elif not self.unsent and self._ring.try_send(_NO_SLOT + body):
            return
        entry = _Pending(body, packing, arrays)
        if self.unsent or not self._try(entry):
            if entry.frame is None:
                # The caller may write into its arrays as soon as this returns.
                entry.arrays = tuple(np.array(array) for array in arrays)
            self.unsent.append(entry)

    def flush(self) -> None:
        """Send what waits, as far as there is room; called when the consumer made some."""
        while self.unsent and self._try(self.unsent[0]):
            self.unsent.popleft()

    def peer_gone(self, cause: str) -> None:
        """`post` raises PeerGoneError from now on; what waits is given up."""
        self.unsent.clear()
        self._ring.peer_gone(cause)

    def statistics(self) -> ChannelStatistics:
        free = self._slots.free() if self._slots else 0
        return ChannelStatistics(self._ring.statistics(), len(self.unsent), free)

    def _try(self, entry: _Pending) -> bool:
        if entry.frame is None:
            assert self._slots is not None
            assert entry.packing is not None
            slot = self._slots.try_fill(entry.packing, entry.arrays)
            if slot is None:
                return False
            entry.arrays = ()
            entry.frame = _PREFIX.pack(slot + 1) + entry.body
        return self._ring.try_send(entry.frame)


class Receiver:
    """The consumer's end."""

    def __init__(self, spec: ChannelSpec, ring: RingReader, slots: SlotReader | None) -> None:
        self.spec = spec
        self.name = spec.name
        self.always_drain = spec.always_drain
        self.ring = ring
        self._slots = slots
        self._decode = decoder(spec.messages)

    def take(self) -> tuple[Any, Arrays] | None:
        """The next message and its arrays, or None while there is none.

        Raises RingCorruptError when what arrived is no message of this channel.
        """
        frame = self.ring.try_receive()
        if frame is None:
            return None
        try:
            message = self._decode(memoryview(frame)[_PREFIX.size :])
        except msgspec.DecodeError as error:
            raise RingCorruptError(f"channel {self.name}: {error}") from error
        if frame.startswith(_NO_SLOT):
            return message, NO_ARRAYS
        if self._slots is None:
            raise RingCorruptError(f"channel {self.name}: arrays arrived, it has no slots")
        slot = _PREFIX.unpack_from(frame)[0] - 1
        return message, Arrays(self._slots.views(slot), self._slots, slot)

    def statistics(self) -> ChannelStatistics:
        free = self._slots.free() if self._slots else 0
        return ChannelStatistics(self.ring.statistics(), 0, free)


def open_sender(
    spec: ChannelSpec, ring: memoryview, slots: memoryview | None, wake_target: Wake
) -> Sender:
    """The producer's end over formatted ring memory and the pool's (None: no slots)."""
    writer = RingWriter(ring, spec.name, wake_target)
    if slots is None:
        return Sender(spec, writer, None)
    return Sender(spec, writer, SlotWriter(slots, spec.name, spec.slot_bytes, spec.slots))


def open_receiver(
    spec: ChannelSpec, ring: memoryview, slots: memoryview | None, wake_source: Wake
) -> Receiver:
    """The consumer's end of the same memory."""
    reader = RingReader(ring, spec.name, wake_source)
    if slots is None:
        return Receiver(spec, reader, None)
    pool = SlotReader(slots, spec.name, spec.slot_bytes, spec.slots, wake_source)
    return Receiver(spec, reader, pool)
