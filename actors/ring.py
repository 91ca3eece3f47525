"""A byte ring between one producer and one consumer in shared memory.

Layout: words of 8 bytes, each alone in 64 bytes so that the two sides do not fight for a line:

    0   HEAD    bytes ever published; written by the producer
    64  TAIL    bytes ever consumed; written by the consumer
    128 ASLEEP  1 while the consumer sleeps and must be woken
    192 WANTED  the TAIL that the producer waits for; 0 when it does not wait
    256 SIZE    capacity in bytes, a multiple of 8
    320 data    frames, wrapping at SIZE

A frame is u32 payload bytes, u32 bytes of the same message that follow in later frames, payload,
padding to 8. Indices only grow (2^64 bytes never pass) and wrap by remainder, so full and empty
differ.

Sleeping. The consumer stores ASLEEP = 1, fences, and looks at HEAD once more before it sleeps; the
producer stores HEAD, fences, and then looks at ASLEEP. Whichever fence comes second sees the
other's store, so a frame is either found by the last look or wakes the consumer. The producer
clears ASLEEP before it wakes, which spares a wake per further frame: should that late store hit an
ASLEEP that the consumer has set anew, the wake that follows it makes the consumer look again.
WANTED is the same with the roles exchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NoReturn

import msgspec

from actors.errors import MessageTooLargeError, PeerGoneError, RingCorruptError
from actors.fence import PUBLICATION_NEEDS_FENCE, full_fence
from actors.topology import FRAME_HEADER_BYTES, MAX_MESSAGE_BYTES

_HEAD, _TAIL, _ASLEEP, _WANTED, _SIZE = 0, 8, 16, 24, 32
_DATA_BYTES = 320
_HEADER = struct.Struct("=II")

Wake = Callable[[], object]


class RingStatistics(msgspec.Struct, frozen=True):
    """One end's counts. `wakes`: the peer had to be woken. `full_waits`: a message found no room
    (producer). `high_water`: most bytes ever seen in the ring."""

    messages: int
    frames: int
    bytes: int
    wakes: int
    full_waits: int
    high_water: int


def ring_memory_bytes(capacity: int) -> int:
    return _DATA_BYTES + capacity


def format_ring(memory: memoryview) -> None:
    """Make zeroed `memory` an empty ring that fills it; before either end is built."""
    memory.cast("Q")[_SIZE] = len(memory) - _DATA_BYTES


class _RingEnd:
    """What producer and consumer share: the words, and the counts of this side."""

    def __init__(self, memory: memoryview, name: str, wake: Wake, max_message: int) -> None:
        self.name = name
        self._words = memory[:_DATA_BYTES].cast("Q")
        self._data = memory[_DATA_BYTES:]
        self._capacity = len(self._data)
        self._wake = wake
        self._max_message = max_message
        self._gone: str | None = None
        self._messages = self._frames = self._bytes = 0
        self._wakes = self._full_waits = self._high_water = 0
        if self._words[_SIZE] != self._capacity or self._capacity % 8:
            raise RingCorruptError(
                f"ring {name}: {self._capacity} bytes of data, its header says {self._words[_SIZE]}"
            )

    def statistics(self) -> RingStatistics:
        return RingStatistics(
            self._messages,
            self._frames,
            self._bytes,
            self._wakes,
            self._full_waits,
            self._high_water,
        )

    def peer_gone(self, cause: str) -> None:
        """Every later use raises PeerGoneError with `cause`."""
        self._gone = cause

    def _used(self, head: int, tail: int) -> int:
        used = head - tail
        if not 0 <= used <= self._capacity or used % 8:
            raise RingCorruptError(
                f"ring {self.name}: head {head} and tail {tail} are impossible "
                f"for {self._capacity} bytes"
            )
        return used

    def _raise_gone(self) -> NoReturn:
        raise PeerGoneError(f"ring {self.name}: {self._gone}")


class RingWriter(_RingEnd):
    """The producer's end. `wake` wakes the consumer."""

    def __init__(
        self,
        memory: memoryview,
        name: str,
        wake: Wake,
        max_message: int = MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(memory, name, wake, max_message)
        self._head = self._words[_HEAD]
        self._sent = 0
        # Half a ring: the consumer empties one half while the other is filled.
        self.max_fragment = max(16, self._capacity // 2 // 8 * 8) - FRAME_HEADER_BYTES

    def check_size(self, size: int) -> None:
        """Raises MessageTooLargeError when a message of `size` bytes may not be sent at all."""
        if size > self._max_message:
            raise MessageTooLargeError(
                f"channel {self.name}: a message of {size} bytes exceeds the maximum of "
                f"{self._max_message}"
            )

    def try_send(self, message: bytes | bytearray) -> bool:
        """True when the whole message lies in the ring.

        False: there is no room for the rest of it. The consumer will wake this side; then call
        again with the same message. Raises MessageTooLargeError, PeerGoneError, RingCorruptError.
        """
        if self._gone is not None:
            self._raise_gone()
        size = len(message)
        if self._sent == 0:
            self.check_size(size)
        while True:
            length = min(size - self._sent, self.max_fragment)
            if not self._room(FRAME_HEADER_BYTES + (length + 7) // 8 * 8):
                return False
            self._put(message, length, size - self._sent - length)
            self._sent += length
            if self._sent == size:
                break
        self._sent = 0
        self._messages += 1
        return True

    def _room(self, needed: int) -> bool:
        words = self._words
        if self._capacity - self._used(self._head, words[_TAIL]) >= needed:
            return True
        self._full_waits += 1
        words[_WANTED] = self._head + needed - self._capacity
        full_fence()
        if self._capacity - self._used(self._head, words[_TAIL]) < needed:
            return False
        words[_WANTED] = 0
        return True

    def _put(self, message: bytes | bytearray, length: int, following: int) -> None:
        # A fragment overwrites bytes whose release (TAIL) was just read: keep it behind that.
        if PUBLICATION_NEEDS_FENCE:
            full_fence()
        start = self._head % self._capacity
        _HEADER.pack_into(self._data, start, length, following)
        begin = start + FRAME_HEADER_BYTES
        whole = length == len(message)
        part = message if whole else memoryview(message)[self._sent : self._sent + length]
        first = min(length, self._capacity - begin)
        if first == length:
            self._data[begin : begin + length] = part
        else:
            self._data[begin : begin + first] = part[:first]
            self._data[: length - first] = part[first:]
        self._head += FRAME_HEADER_BYTES + (length + 7) // 8 * 8
        self._publish(length)

    def _publish(self, length: int) -> None:
        words = self._words
        if PUBLICATION_NEEDS_FENCE:
            full_fence()
        words[_HEAD] = self._head
        full_fence()
        self._frames += 1
        self._bytes += length
        filled = self._head - words[_TAIL]
        if filled > self._high_water:
            self._high_water = filled
        if words[_ASLEEP]:
            words[_ASLEEP] = 0
            self._wakes += 1
            self._wake()


class RingReader(_RingEnd):
    """The consumer's end. `wake` wakes a producer that waits for room."""

    def __init__(
        self,
        memory: memoryview,
        name: str,
        wake: Wake,
        max_message: int = MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(memory, name, wake, max_message)
        self._tail = self._words[_TAIL]
        self._parts: list[bytes] = []
        self._held = 0
        self._following = 0

    def ready(self) -> bool:
        """True when a frame waits (perhaps a fragment only)."""
        return bool(self._words[_HEAD] != self._tail)

    def set_asleep(self, asleep: bool) -> None:
        """Before sleeping: set, `full_fence()`, and sleep only if `ready()` is still false."""
        self._words[_ASLEEP] = asleep

    def try_receive(self) -> bytes | None:
        """The next whole message, or None while there is none.

        Raises RingCorruptError when the producer left nonsense, PeerGoneError when the ring is
        empty and the producer is gone (what it had sent whole can still be read).
        """
        while True:
            head = self._words[_HEAD]
            if head == self._tail:
                if self._gone is not None:
                    self._raise_gone()
                return None
            used = self._used(head, self._tail)
            if PUBLICATION_NEEDS_FENCE:
                full_fence()
            frame, following = self._take(used)
            if used > self._high_water:
                self._high_water = used
            if following == 0 and not self._parts:
                self._messages += 1
                return frame
            self._parts.append(frame)
            self._held += len(frame)
            if following == 0:
                message = b"".join(self._parts)
                self._parts.clear()
                self._held = 0
                self._messages += 1
                return message

    def _take(self, used: int) -> tuple[bytes, int]:
        start = self._tail % self._capacity
        length, following = _HEADER.unpack_from(self._data, start)
        step = FRAME_HEADER_BYTES + (length + 7) // 8 * 8
        self._check_frame(length, following, step, used)
        begin = start + FRAME_HEADER_BYTES
        first = min(length, self._capacity - begin)
        frame = bytes(self._data[begin : begin + first])
        if first < length:
            frame += self._data[: length - first]
        self._following = following
        self._tail += step
        self._frames += 1
        self._bytes += length
        self._release()
        return frame, following

    def _check_frame(self, length: int, following: int, step: int, used: int) -> None:
        total = self._held + length + following
        if (
            step > used
            or total > self._max_message
            or (following and not length)
            or (self._parts and length + following != self._following)
        ):
            raise RingCorruptError(
                f"ring {self.name}: a frame of {length} bytes, {following} to follow, cannot stand "
                f"among {used} bytes after {self._held} bytes of its message"
            )

    def _release(self) -> None:
        words = self._words
        # The copy out of the frame is complete before its room is given away.
        if PUBLICATION_NEEDS_FENCE:
            full_fence()
        words[_TAIL] = self._tail
        full_fence()
        wanted = words[_WANTED]
        if wanted and self._tail >= wanted:
            words[_WANTED] = 0
            self._wakes += 1
            self._wake()
