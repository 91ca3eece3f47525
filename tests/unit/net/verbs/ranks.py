"""Frames of made-up ranks."""

from __future__ import annotations

from dgpp.net.verbs.frames import Geometry, LaneEnd, RankFrame
from dgpp.net.verbs.library import Address

SMALL = Geometry(4, 64, 2, 256)


def frame_of(rank, world, lanes=2, geometry=SMALL):
    gid = bytes(15) + bytes([rank])
    ends = tuple(
        tuple(
            LaneEnd(
                Address(100 * peer + lane, 1, gid), Address(7, 2, gid), 50 + peer, 1024, 1 << 40
            )
            for lane in range(lanes)
        )
        for peer in range(world - 1)
    )
    return RankFrame(rank, geometry, ends)
