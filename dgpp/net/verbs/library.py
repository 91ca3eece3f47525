"""What the RoCE bus needs of a verbs library, and nothing else.

A port makes completion queues, regions and queue pairs; whoever made something closes it, queue
pairs before what they use. One thread uses a port and all that it made. Nothing here waits.
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
MTUS = (256, 512, 1024, 2048, 4096)


class Status(enum.Enum):
    """How work ended; the value says it for people."""

    DONE = "done"
    UNREACHABLE = "no answer after all retries"
    NOT_READY = "the peer posted no receive"
    REMOTE_ACCESS = "the peer refused access to its memory"
    LOCAL_ACCESS = "not memory that this rank registered"
    FLUSHED = "thrown away, the queue pair had failed before"
    OTHER = "failed"


class Event(enum.Enum):
    """What a completion is of. Of failed work only its `wr_id` and status are known."""

    SENT = 0
    """A send or write of this rank has arrived."""
    RECEIVED = 1
    """A peer's send filled a posted receive."""
    WRITTEN = 2
    """A peer's write with an immediate arrived; it consumed a posted receive and left it empty."""
    FAILED = 3


class Completion(NamedTuple):
    """One piece of work that ended. `length` in bytes, of what was received."""

    wr_id: int
    event: Event
    status: Status = Status.DONE
    immediate: int = 0
    length: int = 0
    detail: str = ""
    """The library's own number of a failure."""


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
    """Where work of queue pairs reports."""

    def poll(self, most: int) -> list[Completion]:
        """What has ended since, at most `most`, oldest first."""

    def close(self) -> None: ...


class QueuePair(Protocol):
    """One end of a reliable connection: what is posted arrives once and in order, or fails.

    Addresses are this process's, lengths bytes up to 2**31. `signaled` work has a completion when
    it has arrived; other work has one only where it fails. Posting raises PostError.
    """

    address: Address

    def connect(self, peer: Address, mtu: int) -> None:
        """To the queue pair `peer`, ready to send; `mtu` is one of MTUS, the same on both sides.
        Receives are posted before a peer may send. Raises DeviceError."""

    def post_receive(self, wr_id: int, address: int, length: int, lkey: int) -> None:
        """Room for one send, or a slot for one write with an immediate (then `length` may be 0)."""

    def post_send(
        self, wr_id: int, address: int, length: int, lkey: int, *, signaled: bool = True
    ) -> None: ...

    def post_write(
        self, wr_id: int, address: int, length: int, lkey: int, remote: int, rkey: int, *,
        immediate: int | None = None, signaled: bool = True,
    ) -> None:  # fmt: skip
        """Into the peer's memory at `remote`; with an `immediate` (u32) the peer is told."""

    def close(self) -> None: ...


class Port(Protocol):
    """An opened device's first port, sending from one address of it.

    What it makes raises DeviceError where there is no room for it.
    """

    name: str
    gid: bytes
    mtu: int
    """Bytes a packet carries at most."""

    def completion_queue(self, depth: int) -> CompletionQueue: ...

    def register(self, address: int, length: int) -> Region:
        """Memory that stays where it is until the region is closed."""

    def queue_pair(self, completions: CompletionQueue, depth: int) -> QueuePair:
        """`depth` pieces of work each way at once; not connected yet."""

    def close(self) -> None: ...


_REMEDIES: dict[Status, tuple[type[BusError], str]] = {
    Status.UNREACHABLE: (
        PeerUnreachableError,
        "its process or machine is gone, or the network between drops; see its log there",
    ),
    Status.NOT_READY: (PeerNotReadyError, "its process hangs; see its log"),
    Status.REMOTE_ACCESS: (
        RemoteAccessError,
        "a key or address of another start: restart all ranks together",
    ),
    Status.LOCAL_ACCESS: (LocalAccessError, "a fault of dgpp, please report it"),
    Status.FLUSHED: (QueueBrokenError, "the first failure of this peer says why"),
}


def require_done(completion: Completion, whom: str) -> None:
    """Raises the BusError that names `whom` (as in "rank 2, lane 0") unless the work is done."""
    status = completion.status
    if status is Status.DONE:
        return
    kind, remedy = _REMEDIES.get(status, (BusError, "see the kernel's log (dmesg)"))
    detail = f" ({completion.detail})" if completion.detail else ""
    raise kind(f"roce bus: {whom}: {status.value}{detail}: {remedy}")
