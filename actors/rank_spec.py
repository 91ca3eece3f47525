"""What a rank's process is told at birth by the process that started the whole host's ranks."""

from __future__ import annotations

import os

import msgspec

from actors.memory import create_memfd, map_memfd


class RankSpec(msgspec.Struct, frozen=True):
    """Rank `rank` of the world that `settings` (resolved, as JSON) describes.

    `host` and `port` are rank 0's journal, `token` the world's secret. `heartbeat` is the page of
    the host's ranks, one word each; `stall_s`: how long rank 0's may stand still when the world
    serves, `start_stall_s` before. `slab` is the shared memory of the collectives (−1: none). All
    fds are inherited under the same numbers.
    """

    rank: int
    settings: bytes
    host: str
    port: int
    token: bytes
    log_json: bool
    parent_pid: int
    heartbeat: int
    stall_s: float
    start_stall_s: float
    slab: int

    def fds(self) -> set[int]:
        """Every fd the rank inherits."""
        return {self.heartbeat, self.slab} - {-1}


def write_rank_spec(spec: RankSpec) -> int:
    """A memfd that holds `spec`."""
    encoded = msgspec.msgpack.encode(spec)
    fd = create_memfd(f"dgpp-rank-{spec.rank}", len(encoded))
    os.pwrite(fd, encoded, 0)
    return fd


def read_rank_spec(fd: int) -> RankSpec:
    """Reads and closes the memfd."""
    with map_memfd(fd) as memory:
        spec = msgspec.msgpack.decode(memory, type=RankSpec)
    os.close(fd)
    return spec
