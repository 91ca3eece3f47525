"""Which actors a rank has and which channels join them: plain data, checked before use."""

from __future__ import annotations

import functools
import importlib
import operator
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from actors.errors import TopologyError
from actors.statistics import Metric

FRAME_HEADER_BYTES = 8
MAX_MESSAGE_BYTES = 256 << 20
RING_BYTES_MIN = 256


class ChannelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One direction between two actors: one producer, one consumer.

    `messages` is a msgspec Struct class or a union (`A | B`) of tagged ones, all at module level.
    `ring_bytes` is the ring's capacity; `frame_bytes` the largest frame in ordinary use (0: not
    stated), of which depth + 1 must fit. `slots` shared slots of `slot_bytes` each carry arrays.
    `always_drain`: delivered even while the consumer is congested or busy in an async handler.
    `spin_us`: how long (below 20) the consumer polls before it sleeps; ignored under 3 CPUs.
    """

    source: str
    target: str
    messages: Any
    ring_bytes: int
    frame_bytes: int = 0
    slot_bytes: int = 0
    slots: int = 0
    always_drain: bool = False
    spin_us: int = 0

    @property
    def name(self) -> str:
        return f"{self.source}>{self.target}"


class RoleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One actor. `actor` is "module:Class"; a role's place in the topology is its start order.

    `shutdown_s`: how long `stop()` may take before the process is killed. `faces_outside`: told
    to drain, and told when the world fails. `statistics`: the metrics of its shared block.
    `environment` is laid over the parent's for the child; `unset` names are removed from it.
    `files` are open fds of this process that the actor inherits, each under a name.
    """

    role: str
    actor: str
    shutdown_s: float = 5.0
    faces_outside: bool = False
    statistics: tuple[Metric, ...] = ()
    environment: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    files: dict[str, int] = {}


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The actors of one rank in start order (stopped in reverse) and the channels between them.

    `depth` is the pipeline depth D: at most D + 1 plans are outstanding.
    """

    roles: tuple[RoleSpec, ...]
    channels: tuple[ChannelSpec, ...]
    rank: int = 0
    depth: int = 0

    def validate(self) -> None:
        """Raises TopologyError naming the role or channel that does not fit."""
        names = [role.role for role in self.roles]
        if doubled := _doubled(names):
            raise TopologyError(f"role {doubled} stands twice in the topology")
        if doubled := _doubled(channel.name for channel in self.channels):
            raise TopologyError(
                f"channel {doubled} stands twice: it has one producer, one consumer"
            )
        for role in self.roles:
            split_target(role.actor)
        for channel in self.channels:
            _validate_channel(channel, names, self.depth)

    def role(self, name: str) -> RoleSpec:
        for role in self.roles:
            if role.role == name:
                return role
        raise TopologyError(f"no role {name} in the topology")


@functools.cache
def message_types(messages: Any) -> tuple[type[msgspec.Struct], ...]:
    """The Struct classes of a union (or the one class). Raises TopologyError for other types."""
    members = typing.get_args(messages) or (messages,)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, msgspec.Struct)):
            raise TopologyError(f"{member!r} is no msgspec Struct: only Structs travel in channels")
    return members


@functools.cache
def decoder(messages: Any) -> Callable[[memoryview], Any]:
    """Reads msgpack of any of `messages`. Raises TypeError where it could not tell them apart."""
    return msgspec.msgpack.Decoder(messages).decode


def message_names(messages: Any) -> tuple[str, ...]:
    """ "module:Class" of every member, the form in which types reach a child process."""
    return tuple(f"{t.__module__}:{t.__qualname__}" for t in message_types(messages))


def resolve_messages(names: tuple[str, ...]) -> Any:
    """The union of the Struct classes that `names` (as `message_names` gives them) stand for."""
    return functools.reduce(operator.or_, (resolve(name) for name in names))


def split_target(target: str) -> tuple[str, str]:
    module, separator, name = target.partition(":")
    if not (module and separator and name.isidentifier()):
        raise TopologyError(f'{target!r} is not of the form "module:Name"')
    return module, name


def resolve(target: str) -> Any:
    """Import what "module:Name" stands for. Import errors pass through; a missing name is a
    TopologyError."""
    module, name = split_target(target)
    found = getattr(importlib.import_module(module), name, None)
    if found is None:
        raise TopologyError(f"module {module} has no {name}")
    return found


def _validate_channel(channel: ChannelSpec, roles: list[str], depth: int) -> None:
    for end in (channel.source, channel.target):
        if end not in roles:
            raise TopologyError(f"channel {channel.name}: no role {end} in the topology")
    if channel.source == channel.target:
        raise TopologyError(f"channel {channel.name}: an actor has no channel to itself")
    if channel.ring_bytes < RING_BYTES_MIN or channel.ring_bytes % 8:
        raise TopologyError(
            f"channel {channel.name}: ring_bytes {channel.ring_bytes} is not a multiple of 8 "
            f"of at least {RING_BYTES_MIN}"
        )
    needed = (depth + 1) * (channel.frame_bytes + FRAME_HEADER_BYTES + 7)
    if channel.frame_bytes and needed > channel.ring_bytes:
        raise TopologyError(
            f"channel {channel.name}: {depth + 1} frames of {channel.frame_bytes} bytes need "
            f"{needed}, ring_bytes is {channel.ring_bytes}"
        )
    if (channel.slots > 0) != (channel.slot_bytes > 0):
        raise TopologyError(f"channel {channel.name}: slots and slot_bytes go together")
    if channel.slots and channel.slots < depth + 1:
        raise TopologyError(
            f"channel {channel.name}: {channel.slots} slots are fewer than depth + 1 = {depth + 1}"
        )
    if not 0 <= channel.spin_us < 20:
        raise TopologyError(f"channel {channel.name}: spin_us {channel.spin_us} is not in 0..19")
    try:
        _validate_messages(channel.messages)
    except (TopologyError, TypeError) as error:
        raise TopologyError(f"channel {channel.name}: {error}") from error


@functools.cache
def _validate_messages(messages: Any) -> None:
    for name, member in zip(message_names(messages), message_types(messages), strict=True):
        if resolve(name) is not member:
            raise TopologyError(f"{name} is not what that name imports")
    decoder(messages)


def _doubled(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
