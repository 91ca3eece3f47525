"""What ranks tell each other to connect their queue pairs: fixed frames, bounded and checked.

Little-endian. A rank's frame: magic DGBS, u8 version, u8 lanes, u8 peers, u8 0, i32 rank, for each
pool u32 slots and u32 bytes of one, u32 CRC-32; then for each peer, ascending, and each lane: for
each pool u32 number and first packet of its queue pair, 16 bytes GID, u32 key, u32 MTU, u64 address
of the slab. A pool without slots has no queue pairs: zeros.

Rank 0 answers with a notice: magic, u8 version, 3 bytes 0, u32 bytes that follow, u32 CRC-32. DGBT
carries everyone's frame in rank order and the proof of them, DGBR the reason of a refusal in UTF-8;
DGBC says that a rank is connected and DGBG that all are. A CRC-32 is of the whole with zeros in its
own place.
"""

from __future__ import annotations

import enum
import struct
import zlib

import msgspec

from dgpp.net.journal_errors import FrameError
from dgpp.net.roce import MOST_LANES
from dgpp.net.verbs.library import GID_BYTES, MTUS, NUMBER_BITS, Address

VERSION = 2
"""Raised with every change of frames, slab or slots."""
MOST_PEERS = 15
REASON_BYTES = 4096
HEAD_BYTES = 40
NOTICE_BYTES = 16

_HEAD = struct.Struct("<4sBBBBiIIIIIII")
_LANE = struct.Struct(f"<IIIIII{GID_BYTES}sIIQ")
_NOTICE = struct.Struct("<4sB3sII")
_MAGIC = b"DGBS"
_NUMBERS = 1 << NUMBER_BITS
_NONE = (0, 0)


class Kind(enum.Enum):
    """A notice's magic."""

    TABLE = b"DGBT"
    REFUSED = b"DGBR"
    CONNECTED = b"DGBC"
    GO = b"DGBG"


_MOST_BYTES = {
    Kind.TABLE: (1 + MOST_PEERS) * (HEAD_BYTES + _LANE.size * MOST_LANES * MOST_PEERS) + 32,
    Kind.REFUSED: REASON_BYTES,
    Kind.CONNECTED: 0,
    Kind.GO: 0,
}


class Pool(enum.IntEnum):
    """Slots of one size: small sums wait for nothing large, and a device counts its own."""

    LATENCY = 0
    BULK = 1
    DEVICE = 2


class Geometry(msgspec.Struct, frozen=True):
    """Slots of a pool in one direction of one lane, and the payload bytes of one. 0 slots: there is
    no such pool."""

    latency_slots: int = 32
    latency_slot_bytes: int = 8192
    bulk_slots: int = 16
    bulk_slot_bytes: int = 262_144
    device_slots: int = 0
    device_slot_bytes: int = 65536

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Slots of each pool, and bytes of one."""
        return (
            (self.latency_slots, self.latency_slot_bytes),
            (self.bulk_slots, self.bulk_slot_bytes),
            (self.device_slots, self.device_slot_bytes),
        )

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Those that there are."""
        return tuple(pool for pool in Pool if self.sizes[pool][0])

    def __str__(self) -> str:
        return " and ".join(
            f"{self.sizes[pool][0]} {pool.name.lower()} slots of {self.sizes[pool][1]} bytes"
            for pool in self.pools
        )


DEVICE_SLOTS = 32
"""Of a world whose ranks compute on GPUs."""


def geometry_of(backend: str) -> Geometry:
    """Of ranks that compute on `backend`."""
    return Geometry(device_slots=DEVICE_SLOTS if backend == "cuda" else 0)


class LaneEnd(msgspec.Struct, frozen=True):
    """A rank's end of one lane to one peer: its queue pairs, by pool, which share a GID, None for a
    pool that is not there. `key` and `slab`: where the peer may write."""

    pairs: tuple[Address | None, ...]
    key: int
    mtu: int
    slab: int


class RankFrame(msgspec.Struct, frozen=True):
    """All ends of one rank: `ends[p][l]` is lane l to its p-th peer, peers ascending."""

    rank: int
    geometry: Geometry
    ends: tuple[tuple[LaneEnd, ...], ...]

    @property
    def lanes(self) -> int:
        return len(self.ends[0])

    @property
    def world(self) -> int:
        return len(self.ends) + 1

    def towards(self, peer: int) -> tuple[LaneEnd, ...]:
        """The lanes to rank `peer`."""
        return self.ends[peer - (peer > self.rank)]


def encode(frame: RankFrame) -> bytes:
    """A frame to send."""
    sizes = (value for size in frame.geometry.sizes for value in size)
    head = _HEAD.pack(
        _MAGIC, VERSION, frame.lanes, len(frame.ends), 0, frame.rank, *sizes, 0
    )  # fmt: skip
    return _sealed(head, b"".join(_packed(end) for lanes in frame.ends for end in lanes))


def _packed(end: LaneEnd) -> bytes:
    numbers = [
        number for pair in end.pairs for number in ((pair.number, pair.psn) if pair else _NONE)
    ]
    gid = next(pair.gid for pair in end.pairs if pair)
    return _LANE.pack(*numbers, gid, end.key, end.mtu, end.slab)


def frame_bytes(head: bytes) -> int:
    """Length of the frame that begins with `head` (HEAD_BYTES). Raises FrameError."""
    if len(head) < HEAD_BYTES:
        raise FrameError(f"a bus frame's head has {HEAD_BYTES} bytes, this one {len(head)}")
    magic, version, lanes, peers, *_rest = _HEAD.unpack_from(head)
    _check_begin(magic == _MAGIC, version)
    if not 1 <= lanes <= MOST_LANES:
        raise FrameError(f"a bus frame of {lanes} lanes, there are 1 to {MOST_LANES}")
    if not 1 <= peers <= MOST_PEERS:
        raise FrameError(f"a bus frame of {peers} peers, there are 1 to {MOST_PEERS}")
    return HEAD_BYTES + _LANE.size * int(lanes) * int(peers)


def decode(data: bytes) -> RankFrame:
    """The frame that `data` is exactly. Raises FrameError."""
    length = frame_bytes(data)
    if len(data) != length:
        raise FrameError(f"a bus frame of {len(data)} bytes, its head says {length}")
    _check_seal(data, HEAD_BYTES)
    _magic, _version, lanes, peers, zero, rank, *sizes, _sum = _HEAD.unpack_from(data)
    if zero or not 0 <= rank <= peers:
        raise FrameError(f"a bus frame of rank {rank} with {peers} peers")
    geometry = Geometry(*sizes)
    if not {Pool.LATENCY, Pool.BULK} <= set(geometry.pools):
        raise FrameError("a bus frame without latency or bulk slots")
    places = range(HEAD_BYTES, length, _LANE.size)
    ends = [_lane_end(data, place, geometry) for place in places]
    return RankFrame(
        rank,
        geometry,
        tuple(tuple(ends[lanes * peer : lanes * (peer + 1)]) for peer in range(peers)),
    )


def _lane_end(data: bytes, start: int, geometry: Geometry) -> LaneEnd:
    *numbers, gid, key, mtu, slab = _LANE.unpack_from(data, start)
    if max(numbers) >= _NUMBERS:
        raise FrameError(f"a queue pair's number or first packet beyond {NUMBER_BITS} bits")
    if mtu not in MTUS:
        raise FrameError(f"an MTU of {mtu} bytes")
    there = geometry.pools
    pairs = tuple(
        Address(number, psn, gid) if pool in there else None
        for pool, number, psn in zip(Pool, numbers[::2], numbers[1::2], strict=True)
    )
    return LaneEnd(pairs, key, mtu, slab)


def encode_notice(kind: Kind, body: bytes = b"") -> bytes:
    """A notice to send."""
    return _sealed(_NOTICE.pack(kind.value, VERSION, bytes(3), len(body), 0), body)


def notice_bytes(head: bytes) -> int:
    """Length of the notice that begins with `head` (NOTICE_BYTES). Raises FrameError."""
    if len(head) < NOTICE_BYTES:
        raise FrameError(f"a bus notice's head has {NOTICE_BYTES} bytes, this one {len(head)}")
    magic, version, _zero, length, _sum = _NOTICE.unpack_from(head)
    known = magic in {kind.value for kind in Kind}
    _check_begin(known, version)
    most = _MOST_BYTES[Kind(magic)]
    if length > most:
        raise FrameError(f"a bus notice of {length} bytes, the limit is {most}")
    return NOTICE_BYTES + int(length)


def decode_notice(data: bytes) -> tuple[Kind, bytes]:
    """What the notice that `data` is exactly says. Raises FrameError."""
    length = notice_bytes(data)
    if len(data) != length:
        raise FrameError(f"a bus notice of {len(data)} bytes, its head says {length}")
    _check_seal(data, NOTICE_BYTES)
    return Kind(data[:4]), data[NOTICE_BYTES:]


def decode_frames(data: bytes) -> tuple[RankFrame, ...]:
    """Frames of ranks 0, 1, … one behind the other. Raises FrameError."""
    frames: list[RankFrame] = []
    while data:
        length = frame_bytes(data)
        frames.append(decode(data[:length]))
        data = data[length:]
    if [frame.rank for frame in frames] != list(range(len(frames))):
        raise FrameError("a bus table whose ranks are not in order")
    return tuple(frames)


def _sealed(head: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(body, zlib.crc32(head))
    return head[:-4] + checksum.to_bytes(4, "little") + body


def _check_seal(data: bytes, head: int) -> None:
    """Raises FrameError unless the CRC-32 that ends the first `head` bytes is right."""
    told = int.from_bytes(data[head - 4 : head], "little")
    if zlib.crc32(data[head:], zlib.crc32(data[: head - 4] + bytes(4))) != told:
        raise FrameError(f"a bus frame of {len(data)} bytes is damaged (CRC-32)")


def _check_begin(known: bool, version: int) -> None:
    if not known:
        raise FrameError("not a frame of the bus")
    if version != VERSION:
        raise FrameError(f"bus version {version}, this rank speaks {VERSION}")
