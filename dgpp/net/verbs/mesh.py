"""All channels of a rank: to every peer, on every lane, of both pools."""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.net.verbs.cells import Bytes
from dgpp.net.verbs.channel import Channel, Far, Near, peer_of, queue_depth
from dgpp.net.verbs.frames import Geometry, LaneEnd, RankFrame
from dgpp.net.verbs.layout import Layout, Pool
from dgpp.net.verbs.library import CompletionQueue, Port, QueuePair, Region, require_done

_POLLED = 64


class Mesh:
    """One rank's end of the bus: `frame` is told to the others, `connect` takes what they told.

    `ports` are the lanes, in the same order on every rank. `slab` is uint8 of at least
    `Layout(geometry, lanes, world).bytes`, begins at a multiple of 64 bytes, is all zero and stays
    where it is until `close`; ports are the caller's. One thread uses it.
    """

    def __init__(
        self, ports: Sequence[Port], rank: int, world: int, geometry: Geometry, slab: Bytes
    ) -> None:
        self.rank, self.world, self._geometry = rank, world, geometry
        self._ports, self._slab = ports, slab
        self._layout = Layout(geometry, len(ports), world)
        assert slab.size >= self._layout.bytes
        self._regions: list[Region] = []
        self._queues: list[CompletionQueue] = []
        self._pairs: dict[tuple[int, int, Pool], QueuePair] = {}
        self._channels: dict[tuple[int, int, Pool], Channel] = {}
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
        return RankFrame(
            self.rank,
            self._geometry,
            tuple(
                tuple(self._end(peer, lane) for lane in range(len(self._ports)))
                for peer in self.peers
            ),
        )

    def connect(self, table: Sequence[RankFrame]) -> None:
        """To all ranks of `table`, everyone's frame by rank, this one's too. Nothing may be sent
        before all ranks have connected. Raises DeviceError."""
        for (peer, lane, pool), pair in self._pairs.items():
            theirs = table[peer].towards(self.rank)[lane]
            there = theirs.latency if pool is Pool.LATENCY else theirs.bulk
            pair.connect(there, min(theirs.mtu, self._ports[lane].mtu))
            place = self._layout.place(self.rank, peer, lane, pool)
            mirror = self._layout.place(peer, self.rank, lane, pool)
            self._channels[peer, lane, pool] = Channel(
                pair,
                Near(self._slab, self._regions[lane], place),
                Far(theirs.slab, theirs.key, mirror),
                peer,
                self._whom(peer, lane),
            )

    def channel(self, peer: int, lane: int, pool: Pool) -> Channel:
        """A connected channel."""
        return self._channels[peer, lane, pool]

    def poll(self) -> None:
        """Look after posted work. Raises the BusError of the first that failed, naming the peer
        and the lane. To be called at least once for every time that a pool's slots go round."""
        for lane, queue in enumerate(self._queues):
            while done := queue.poll(_POLLED):
                for completion in done:
                    require_done(completion, self._whom(peer_of(completion.wr_id), lane))

    def close(self) -> None:
        """Give all back but the ports."""
        for pair in self._pairs.values():
            pair.close()
        for region in self._regions:
            region.close()
        for queue in self._queues:
            queue.close()
        self._pairs, self._regions, self._queues = {}, [], []

    def _open(self, lane: int, port: Port) -> None:
        sizes = {
            Pool.LATENCY: queue_depth(self._geometry.latency_slots),
            Pool.BULK: queue_depth(self._geometry.bulk_slots),
        }
        address = int(self._slab.ctypes.data)
        self._regions.append(port.register(address, self._layout.bytes))
        # All that is out may fail at once.
        queue = port.completion_queue((self.world - 1) * sum(sizes.values()))
        self._queues.append(queue)
        for peer in self.peers:
            for pool, depth in sizes.items():
                self._pairs[peer, lane, pool] = port.queue_pair(queue, depth)

    def _end(self, peer: int, lane: int) -> LaneEnd:
        region = self._regions[lane]
        return LaneEnd(
            self._pairs[peer, lane, Pool.LATENCY].address,
            self._pairs[peer, lane, Pool.BULK].address,
            region.rkey,
            self._ports[lane].mtu,
            region.address,
        )

    def _whom(self, peer: int, lane: int) -> str:
        return f"rank {peer}, lane {lane} ({self._ports[lane].name})"
