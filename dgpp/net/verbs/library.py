"""What the RoCE bus needs of a verbs library, and nothing else.

A port makes completion queues, regions and queue pairs; whoever made something closes it, queue
pairs before what they use. One thread uses a port and all that it made. Nothing here waits. What is
posted and polled, millions of times, goes by C functions (`Calls`).
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

import msgspec

from dgpp.net.verbs.errors import (
    BusError,
    LocalAccessError,
    PeerNotReadyError,
    PeerUnreachableError,
    QueueBrokenError,
    RemoteAccessError,
)

GID_BYTES = 16
NUMBER_BITS = 24
"""Of a queue pair's number and of a packet's."""
RETRIES = 6
"""Of a packet that is not acknowledged. 7 would mean for ever on soft-RoCE."""
RNR_RETRIES = 6
"""Of a send whose peer has no receive posted."""
TIMEOUT = 14
"""Until a packet is sent again: 4.096 us * 2**14 = 67 ms."""
MIN_RNR_TIMER = 12
"""What a peer is told to wait, 0.64 ms."""
HOPS = 64
"""That a packet may go."""
MTUS = (256, 512, 1024, 2048, 4096)
"""In the order of ibv_mtu's numbers."""


class Status(enum.IntEnum):
    """How work ended: ibv_wc_status, as far as it tells something of its own."""

    DONE = 0
    LOCAL_LENGTH = 1
    LOCAL_ACCESS = 4
    FLUSHED = 5
    REMOTE_ACCESS = 10
    UNREACHABLE = 12
    NOT_READY = 13


class Calls(NamedTuple):
    """C functions of the verbs library, for compiled code, and their objects: addresses.

    `post_send(pair, ibv_send_wr *, ibv_send_wr **)`, `post_receive(pair, ibv_recv_wr *,
    ibv_recv_wr **)` give 0 or an errno, `poll(queue, int, ibv_wc *)` a number of completions.
    """

    pair: int
    queue: int
    post_send: int
    post_receive: int
    poll: int


class Address(msgspec.Struct, frozen=True):
    """Where a queue pair is reached: its number, its first packet's, its port's GID (16 bytes)."""

    number: int
    psn: int
    gid: bytes


class Region(Protocol):
    """Memory of this process that the adapter may read, and peers that know `rkey` may write."""

    address: int
    length: int
    lkey: int
    rkey: int

    def close(self) -> None:
        """The adapter forgets it."""


class CompletionQueue(Protocol):
    """Where work of queue pairs reports. Compiled code polls it."""

    fd: int
    """Readable once something reported after `arm`."""

    def arm(self) -> None:
        """The next completion makes `fd` readable."""

    def quiet(self) -> None:
        """Take what made `fd` readable."""

    def close(self) -> None: ...


class QueuePair(Protocol):
    """One end of a reliable connection: what is posted arrives once and in order, or fails.

    Compiled code posts to it, by `calls`.
    """

    address: Address
    calls: Calls

    def connect(self, peer: Address, mtu: int) -> None:
        """To the queue pair `peer`, ready to send; `mtu` is one of MTUS, the same on both sides.
        Receives are posted before a peer may send. Raises DeviceError."""

    def close(self) -> None: ...


class Port(Protocol):
    """An opened device's first port, sending from one address of it.

    What it makes raises DeviceError where there is no room for it.
    """

    name: str
    gid: bytes
    mtu: int
    """Bytes a packet carries at most."""
    gbps: float
    """Gb/s; 0 where nobody knows."""

    def completion_queue(self, depth: int) -> CompletionQueue: ...

    def register(self, address: int, length: int) -> Region:
        """Memory that stays where it is until the region is closed."""

    def queue_pair(self, completions: CompletionQueue, depth: int) -> QueuePair:
        """`depth` pieces of work each way at once; not connected yet."""

    def close(self) -> None: ...


_SAID: dict[Status, tuple[type[BusError], str]] = {
    Status.UNREACHABLE: (
        PeerUnreachableError,
        "no answer after all retries: its process or machine is gone, or the network drops",
    ),
    Status.NOT_READY: (
        PeerNotReadyError,
        "the peer posted no receive: its process hangs; see its log",
    ),
    Status.REMOTE_ACCESS: (
        RemoteAccessError,
        "the peer refused access to its memory: restart all ranks together",
    ),
    Status.LOCAL_ACCESS: (
        LocalAccessError,
        "not memory that this rank registered: a fault of dgpp, please report it",
    ),
    Status.FLUSHED: (
        QueueBrokenError,
        "thrown away, the queue pair had failed before: the first failure of this peer says why",
    ),
}


def failure(status: int, vendor: int, whom: str) -> BusError:
    """The error that names `whom` (as in "rank 2, lane 0") for work that ended so; `vendor` is the
    library's own number of it."""
    kind, said = BusError, "failed: see the kernel's log (dmesg)"
    if status in set(Status):
        kind, said = _SAID.get(Status(status), (kind, said))
    return kind(f"roce bus: {whom}: {said} (status {status}, vendor {vendor:#x})")
