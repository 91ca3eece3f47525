"""Frames of made-up ranks."""

from __future__ import annotations

from dgpp.net.verbs.frames import Geometry, LaneEnd, RankFrame
from dgpp.net.verbs.library import Address

SMALL = Geometry(4, 64, 2, 256)


def pairs_of(number, gid):
    return Address(number, 1, gid), Address(7, 2, gid), None


def frame_of(rank, world, lanes=2, geometry=SMALL):
    gid = bytes(15) + bytes([rank])
    ends = tuple(
        tuple(
            LaneEnd(pairs_of(100 * peer + lane, gid), 50 + peer, 1024, 1 << 40)
            for lane in range(lanes)
        )
        for peer in range(world - 1)
    )
    return RankFrame(rank, geometry, ends)
