"""All queue pairs of a rank: to every peer, on every lane, for every pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dgpp.net.verbs.frames import LaneEnd, Pool, RankFrame
from dgpp.net.verbs.layout import Layout, Place
from dgpp.net.verbs.library import CompletionQueue, Port, QueuePair, Region
from kernels_numba.meeting import CELL_BYTES


def queue_depth(slots: int) -> int:
    """What a channel's queue pair must hold: payload, doorbell and credit a slot, for two turns of
    the ring, and what leaves it only with the next signaled work."""
    return 8 * slots


class Link(NamedTuple):
    """A connected queue pair: `near` lies in this rank's slab at `start`, registered as `lkey`;
    `far` in the peer's at `remote`, which `rkey` opens."""

    peer: int
    lane: int
    pair: QueuePair
    depth: int
    start: int
    lkey: int
    near: Place
    remote: int
    rkey: int
    far: Place


class Mesh:
    """One rank's end of the bus: `frame` is told to the others, `connect` takes what they told.

    `ports` are the lanes, in the same order on every rank. The slab lies at `address`, a multiple
    of 64, is all zero and stays there until `close`; ports are the caller's. One thread uses it.
    """

    def __init__(self, ports: Sequence[Port], rank: int, layout: Layout, address: int) -> None:
        assert address % CELL_BYTES == 0
        assert len(ports) == layout.lanes
        self.rank, self.world, self._layout = rank, layout.world, layout
        self._ports, self._address = ports, address
        self._regions: list[Region] = []
        self.queues: list[CompletionQueue] = []
        """One a lane."""
        self.links: list[Link] = []
        """In the order of `Place.number`, once connected."""
        self._pairs: dict[tuple[int, int, Pool], QueuePair] = {}
        try:
            for lane, port in enumerate(ports):
                self._open(lane, port)
        except BaseException:
            self.close()
            raise

    @property
    def peers(self) -> list[int]:
        return [rank for rank in range(self.world) if rank != self.rank]

    def frame(self) -> RankFrame:
        """What the other ranks must know of this one."""
        lanes = range(len(self._ports))
        return RankFrame(
            self.rank,
            self._layout.geometry,
            tuple(tuple(self._end(peer, lane) for lane in lanes) for peer in self.peers),
        )

    def connect(self, table: Sequence[RankFrame]) -> None:
        """To all ranks of `table`, everyone's frame by rank, this one's too. Nothing may be sent
        before all ranks have connected. Raises DeviceError."""
        links = []
        for (peer, lane, pool), pair in self._pairs.items():
            theirs = table[peer].towards(self.rank)[lane]
            there = theirs.pairs[pool]
            assert there is not None, "the rendezvous compares geometries"
            pair.connect(there, min(theirs.mtu, self._ports[lane].mtu))
            near = self._layout.place(self.rank, peer, lane, pool)
            far = self._layout.place(peer, self.rank, lane, pool)
            lkey = self._regions[lane].lkey
            depth = queue_depth(near.slots)
            ours, remote = (depth, self._address, lkey, near), (theirs.slab, theirs.key, far)
            links.append(Link(peer, lane, pair, *ours, *remote))
        self.links = sorted(links, key=lambda link: link.near.number)

    def whom(self, peer: int, lane: int) -> str:
        """A peer for messages."""
        return f"rank {peer}, lane {lane} ({self._ports[lane].name})"

    def close(self) -> None:
        """Give all back but the ports."""
        for pair in self._pairs.values():
            pair.close()
        for region in self._regions:
            region.close()
        for queue in self.queues:
            queue.close()
        self._pairs, self._regions, self.queues, self.links = {}, [], [], []

    def _open(self, lane: int, port: Port) -> None:
        geometry = self._layout.geometry
        depths = {pool: queue_depth(geometry.sizes[pool][0]) for pool in geometry.pools}
        self._regions.append(port.register(self._address, self._layout.bytes))
        # All that is out may fail at once, sends and receives.
        queue = port.completion_queue(2 * (self.world - 1) * sum(depths.values()))
        self.queues.append(queue)
        for peer in self.peers:
            for pool, depth in depths.items():
                self._pairs[peer, lane, pool] = port.queue_pair(queue, depth)

    def _end(self, peer: int, lane: int) -> LaneEnd:
        region = self._regions[lane]
        pairs = (self._pairs.get((peer, lane, pool)) for pool in Pool)
        return LaneEnd(
            tuple(pair.address if pair else None for pair in pairs),
            region.rkey,
            self._ports[lane].mtu,
            region.address,
        )
