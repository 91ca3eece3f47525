"""What a child process is told at birth: msgpack in a memfd that it inherits."""

from __future__ import annotations

import functools
import os

import msgspec

from actors.channel import Receiver, Sender, open_receiver, open_sender
from actors.memory import create_memfd, map_memfd
from actors.ring import Wake
from actors.statistics import Metric
from actors.topology import ChannelSpec, message_names, resolve_messages


class ChannelFds(msgspec.Struct, frozen=True):
    """One channel as a child sees it. `spec.messages` travels by name (`messages`).

    `ring` and `slots` are memfds (`slots` −1: none), `doorbell` the eventfd of the peer.
    """

    spec: ChannelSpec
    messages: tuple[str, ...]
    ring: int
    slots: int
    doorbell: int


class StatisticsFd(msgspec.Struct, frozen=True):
    """The shared block of one role."""

    role: str
    metrics: tuple[Metric, ...]
    fd: int


class ChildSpec(msgspec.Struct, frozen=True):
    """Everything a child needs; all fds are inherited under the same numbers.

    `files` are fds that the actor itself asks for, by name.
    `index` is the child's word in the heart-beat page. `supervisor_stall_s`: how long the
    supervisor's word may stand still before the child ends itself.
    """

    role: str
    rank: int
    actor: str
    boot: bytes
    parent_pid: int
    index: int
    supervisor_stall_s: float
    control: int
    heartbeat: int
    doorbell: int
    outbound: tuple[ChannelFds, ...]
    inbound: tuple[ChannelFds, ...]
    statistics: tuple[StatisticsFd, ...]
    files: dict[str, int]

    @property
    def who(self) -> str:
        return who(self.role, self.rank)

    def fds(self) -> set[int]:
        """Every fd the child inherits."""
        fds = {self.control, self.heartbeat, self.doorbell}
        for channel in (*self.outbound, *self.inbound):
            fds |= {channel.ring, channel.slots, channel.doorbell}
        fds |= {block.fd for block in self.statistics}
        fds |= set(self.files.values())
        return fds - {-1}


def who(role: str, rank: int) -> str:
    """How logs and causes name an actor."""
    return f"{role} of rank {rank}"


def channel_fds(spec: ChannelSpec, ring: int, slots: int, doorbell: int) -> ChannelFds:
    bare = msgspec.structs.replace(spec, messages=None)
    return ChannelFds(bare, message_names(spec.messages), ring, slots, doorbell)


def write_spec(spec: ChildSpec) -> int:
    """A memfd that holds `spec`."""
    encoded = msgspec.msgpack.encode(spec)
    fd = create_memfd(f"dgpp-spec-{spec.role}", len(encoded))
    os.pwrite(fd, encoded, 0)
    return fd


def read_spec(fd: int) -> ChildSpec:
    """Reads and closes the memfd."""
    with map_memfd(fd) as memory:
        spec = msgspec.msgpack.decode(memory, type=ChildSpec)
    os.close(fd)
    return spec


def inherit_sender(channel: ChannelFds) -> Sender:
    """Maps the channel's memory and closes its fds; the doorbell stays open."""
    return open_sender(*_inherit(channel))


def inherit_receiver(channel: ChannelFds) -> Receiver:
    """As `inherit_sender`, for the consumer."""
    return open_receiver(*_inherit(channel))


def eventfd_wake(fd: int) -> Wake:
    """Wakes whoever polls the eventfd."""
    return functools.partial(os.eventfd_write, fd, 1)


def _inherit(channel: ChannelFds) -> tuple[ChannelSpec, memoryview, memoryview | None, Wake]:
    spec = msgspec.structs.replace(channel.spec, messages=resolve_messages(channel.messages))
    slots = _take_memory(channel.slots) if channel.slots >= 0 else None
    return spec, _take_memory(channel.ring), slots, eventfd_wake(channel.doorbell)


def _take_memory(fd: int) -> memoryview:
    memory = map_memfd(fd)
    os.close(fd)
    return memory
