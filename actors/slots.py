"""Fixed-size shared slots beside a ring: bulk arrays are copied in once and read in place.

Layout: one 8-byte word per slot (0 free, 1 in use; the producer takes, the consumer frees), in
64-byte lines of their own, then WAITING (1 while the producer waits for a slot), then the slots.
A slot is u32 bytes of header, msgpack of `[[dtype, shape, offset], ...]`, then the arrays, each at
a multiple of 64 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from actors.errors import ArraysError, RingCorruptError
from actors.fence import PUBLICATION_NEEDS_FENCE, full_fence
from actors.ring import Wake

_LINE = 64
_WORDS_PER_LINE = 8
_LENGTH = struct.Struct("=I")
_KINDS = "biufc"
_KNOWN_LIMIT = 256

K = TypeVar("K")
V = TypeVar("V")


Size = Annotated[int, msgspec.Meta(ge=0)]


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Where one array lies in its slot: NumPy dtype string, shape, byte offset."""

    dtype: Annotated[str, msgspec.Meta(pattern=r"^[<|][biufc]\d+$")]
    shape: tuple[Size, ...]
    offset: Size


_decoder = msgspec.msgpack.Decoder(tuple[Placement, ...])

View = tuple[tuple[int, ...], np.dtype[Any], int]
"""How to look at one array in place: shape, dtype, offset."""


class Packing(msgspec.Struct, frozen=True):
    """How arrays will lie in a slot: the encoded header, a placement for each, bytes in all."""

    header: bytes
    placements: tuple[Placement, ...]
    size: int


def slots_memory_bytes(slot_bytes: int, slots: int) -> int:
    return _LINE * (slots + 1) + slots * _aligned(slot_bytes)


def plan_packing(channel: str, slot_bytes: int, arrays: Sequence[npt.NDArray[Any]]) -> Packing:
    """Raises ArraysError when a dtype cannot travel or the arrays exceed a slot."""
    header = b""
    placements: list[Placement] = []
    room = _LINE * (1 + len(arrays))
    offset = room
    for array in arrays:
        if array.dtype.kind not in _KINDS or not array.dtype.isnative:
            raise ArraysError(
                f"channel {channel}: dtype {array.dtype} cannot travel; view it as an integer type"
            )
        placements.append(Placement(array.dtype.str, array.shape, offset))
        offset += _aligned(array.nbytes)
    header = msgspec.msgpack.encode(placements)
    if _LENGTH.size + len(header) > room:
        raise ArraysError(f"channel {channel}: the shapes of {len(arrays)} arrays are too long")
    if offset > slot_bytes:
        sizes = " + ".join(str(array.nbytes) for array in arrays)
        raise ArraysError(
            f"channel {channel}: arrays of {sizes} bytes need {offset} with alignment, "
            f"slot_bytes is {slot_bytes}"
        )
    return Packing(header, tuple(placements), offset)


class _SlotsEnd:
    def __init__(self, memory: memoryview, channel: str, slot_bytes: int, slots: int) -> None:
        self.channel = channel
        self.slot_bytes = slot_bytes
        self.slots = slots
        self._states = memory[: _LINE * (slots + 1)].cast("Q")
        self._waiting = slots * _WORDS_PER_LINE
        self._stride = _aligned(slot_bytes)
        self._data = memory[_LINE * (slots + 1) :]

    def free(self) -> int:
        """Slots that nobody uses."""
        return sum(not self._states[slot * _WORDS_PER_LINE] for slot in range(self.slots))


class SlotWriter(_SlotsEnd):
    """The producer's end."""

    def __init__(self, memory: memoryview, channel: str, slot_bytes: int, slots: int) -> None:
        super().__init__(memory, channel, slot_bytes, slots)
        self._next = 0
        self._known: dict[object, Packing] = {}
        self.full_waits = 0

    def plan(self, arrays: Sequence[npt.NDArray[Any]]) -> Packing:
        """Raises ArraysError when `arrays` can never be sent here."""
        key = tuple([(array.dtype, array.shape) for array in arrays])
        packing = self._known.get(key)
        if packing is None:
            planned = plan_packing(self.channel, self.slot_bytes, arrays)
            packing = _remember(self._known, key, planned)
        return packing

    def try_fill(self, packing: Packing, arrays: Sequence[npt.NDArray[Any]]) -> int | None:
        """Copy `arrays` into a free slot and return its number; None while there is none (the
        consumer wakes this side when it frees one)."""
        slot = self._take()
        if slot is None:
            self.full_waits += 1
            self._states[self._waiting] = 1
            full_fence()
            slot = self._take()
            if slot is None:
                return None
            self._states[self._waiting] = 0
        if PUBLICATION_NEEDS_FENCE:
            full_fence()
        start = slot * self._stride
        data = self._data[start : start + self._stride]
        _LENGTH.pack_into(data, 0, len(packing.header))
        data[_LENGTH.size : _LENGTH.size + len(packing.header)] = packing.header
        for array, place in zip(arrays, packing.placements, strict=True):
            np.ndarray(array.shape, array.dtype, data, place.offset)[...] = array
        return slot

    def _take(self) -> int | None:
        for step in range(self.slots):
            slot = (self._next + step) % self.slots
            if not self._states[slot * _WORDS_PER_LINE]:
                self._states[slot * _WORDS_PER_LINE] = 1
                self._next = (slot + 1) % self.slots
                return slot
        return None


class SlotReader(_SlotsEnd):
    """The consumer's end. `wake` wakes a producer that waits for a slot."""

    def __init__(
        self, memory: memoryview, channel: str, slot_bytes: int, slots: int, wake: Wake
    ) -> None:
        super().__init__(memory, channel, slot_bytes, slots)
        self._wake = wake
        self._known: dict[bytes, list[View]] = {}

    def views(self, slot: int) -> tuple[npt.NDArray[Any], ...]:
        """The arrays of `slot`, in place and read-only. Raises RingCorruptError for nonsense."""
        if not 0 <= slot < self.slots:
            raise RingCorruptError(f"channel {self.channel}: slot {slot} of {self.slots}")
        start = slot * self._stride
        data = self._data[start : start + self._stride].toreadonly()
        try:
            (length,) = _LENGTH.unpack_from(data, 0)
            header = bytes(data[_LENGTH.size : _LENGTH.size + length])
            views = self._known.get(header)
            if views is None:
                placed = _decoder.decode(header)
                found = [(place.shape, np.dtype(place.dtype), place.offset) for place in placed]
                views = _remember(self._known, header, found)
            return tuple([np.ndarray(shape, dtype, data, at) for shape, dtype, at in views])
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise RingCorruptError(
                f"channel {self.channel}: slot {slot} holds no arrays: {error}"
            ) from error

    def release(self, slot: int) -> None:
        """Give the slot back to the producer; its views are overwritten from now on."""
        if PUBLICATION_NEEDS_FENCE:
            full_fence()
        self._states[slot * _WORDS_PER_LINE] = 0
        full_fence()
        if self._states[self._waiting]:
            self._states[self._waiting] = 0
            self._wake()


class Arrays(Sequence[npt.NDArray[Any]]):
    """The arrays of one message, read-only and in place.

    They stay valid until the message's handler is done; `retain()` keeps them until `release()`.
    Copy what must live longer: a retained slot is missing from the producer's credit.
    """

    __slots__ = ("_arrays", "_slot", "_slots", "retained")

    def __init__(
        self,
        arrays: tuple[npt.NDArray[Any], ...] = (),
        slots: SlotReader | None = None,
        slot: int = 0,
    ) -> None:
        self._arrays = arrays
        self._slots = slots
        self._slot = slot
        self.retained = False

    def retain(self) -> None:
        """Keep the arrays beyond the handler; `release` is the handler's duty now."""
        self.retained = True

    def release(self) -> None:
        """The arrays are read; further calls do nothing."""
        self._arrays = ()
        if self._slots is not None:
            slots, self._slots = self._slots, None
            slots.release(self._slot)

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return iter(self._arrays)

    @overload
    def __getitem__(self, index: int) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[npt.NDArray[Any], ...]: ...
    def __getitem__(self, index: int | slice) -> npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]:
        return self._arrays[index]


def _remember(known: dict[K, V], key: K, value: V) -> V:
    """Shapes repeat from step to step; what is known is bounded all the same."""
    if len(known) >= _KNOWN_LIMIT:
        known.clear()
    known[key] = value
    return value


def _aligned(size: int) -> int:
    return (size + _LINE - 1) // _LINE * _LINE
