"""What ranks tell each other to connect their queue pairs: fixed frames, bounded and checked.

Little-endian. A rank's frame: magic DGBS, u8 version, u8 lanes, u8 peers, u8 0, i32 rank, u32
latency slots, u32 bytes of one, u32 bulk slots, u32 bytes of one, u32 CRC-32; then for each peer,
ascending, and each lane: u32 number and first packet of the latency queue pair, the same of the
bulk one, 16 bytes GID, u32 key, u32 MTU, u64 address of the slab.

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

VERSION = 1
"""Raised with every change of frames, slab or slots."""
MOST_PEERS = 15
REASON_BYTES = 4096
HEAD_BYTES = 32
NOTICE_BYTES = 16

_HEAD = struct.Struct("<4sBBBBiIIIII")
_LANE = struct.Struct(f"<IIII{GID_BYTES}sIIQ")
_NOTICE = struct.Struct("<4sB3sII")
_MAGIC = b"DGBS"
_NUMBERS = 1 << NUMBER_BITS


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


class Geometry(msgspec.Struct, frozen=True):
    """Slots of a pool in one direction of one lane, and the payload bytes of one."""

    latency_slots: int = 32
    latency_slot_bytes: int = 8192
    bulk_slots: int = 16
    bulk_slot_bytes: int = 262_144

    def __str__(self) -> str:
        return (
            f"{self.latency_slots} latency slots of {self.latency_slot_bytes} bytes and "
            f"{self.bulk_slots} bulk slots of {self.bulk_slot_bytes}"
        )


class LaneEnd(msgspec.Struct, frozen=True):
    """A rank's end of one lane to one peer. `key` and `slab`: where the peer may write."""

    latency: Address
    bulk: Address
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
    shape = frame.geometry
    head = _HEAD.pack(
        _MAGIC, VERSION, frame.lanes, len(frame.ends), 0, frame.rank, shape.latency_slots,
        shape.latency_slot_bytes, shape.bulk_slots, shape.bulk_slot_bytes, 0,
    )  # fmt: skip
    body = b"".join(
        _LANE.pack(
            end.latency.number, end.latency.psn, end.bulk.number, end.bulk.psn, end.latency.gid,
            end.key, end.mtu, end.slab,
        )
        for lanes in frame.ends
        for end in lanes
    )  # fmt: skip
    return _sealed(head, body)


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
    ends = [_lane_end(data, HEAD_BYTES + _LANE.size * at) for at in range(lanes * peers)]
    return RankFrame(
        rank,
        Geometry(*sizes),
        tuple(tuple(ends[lanes * peer : lanes * (peer + 1)]) for peer in range(peers)),
    )


def _lane_end(data: bytes, start: int) -> LaneEnd:
    number, psn, bulk_number, bulk_psn, gid, key, mtu, slab = _LANE.unpack_from(data, start)
    if max(number, psn, bulk_number, bulk_psn) >= _NUMBERS:
        raise FrameError(f"a queue pair's number or first packet beyond {NUMBER_BITS} bits")
    if mtu not in MTUS:
        raise FrameError(f"an MTU of {mtu} bytes")
    return LaneEnd(Address(number, psn, gid), Address(bulk_number, bulk_psn, gid), key, mtu, slab)


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
