"""A device's first port and what it makes, through whichever package binds libibverbs.

What cannot be had is named here, with what to do.
"""

from __future__ import annotations

import resource
import secrets
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any

from dgpp.net.roce import PORT, RoceDevice
from dgpp.net.verbs.binding import Binding
from dgpp.net.verbs.errors import DeviceError
from dgpp.net.verbs.library import NUMBER_BITS, Address, CompletionQueue

_ROOM = "`ibv_devinfo -v` says what it has room for"


class VerbsLibrary:
    """The loaded library."""

    def __init__(self, binding: Binding) -> None:
        self.binding, self.name = binding, binding.name

    def open(self, device: RoceDevice, pinned: int = -1) -> VerbsPort:
        """The device's first port, sending from GID `pinned`, else the first that serves.

        Raises DeviceError, or ConfigError where no address serves.
        """
        gid = device.gid(pinned)
        if not device.active:
            raise DeviceError(
                f"roce bus: {device.name} is {device.state}: check its cable and the other end, "
                "then `ip link`"
            )
        return VerbsPort(self.binding, device, gid.index)


class VerbsPort:
    """Implements `dgpp.net.verbs.library.Port`."""

    def __init__(self, binding: Binding, device: RoceDevice, index: int) -> None:
        name = device.name
        self.binding, self.name, self.index, self.gbps = binding, name, index, device.gbps
        self.context = self.attempt(
            f"cannot open {name}",
            "it needs /dev/infiniband and the right to use it; `dgpp discover-roce` lists devices",
            lambda: binding.open(name),
        )
        self._domain: Any = None
        try:
            self.mtu, self.gid = self.attempt(
                f"cannot ask {name} for port {PORT}, GID {index}",
                "`dgpp discover-roce` lists its addresses",
                lambda: binding.port(self.context, index),
            )
            self._domain = self.attempt(
                f"no protection domain on {name}",
                "other processes hold them all",
                lambda: binding.domain(self.context),
            )
        except DeviceError:
            self.close()
            raise

    def attempt(self, what: str, remedy: str, make: Callable[[], Any]) -> Any:
        """What `make` returns. Raises DeviceError."""
        try:
            return make()
        except self.binding.errors as error:
            raise DeviceError(f"roce bus: {what}: {error}: {remedy}") from error

    def completion_queue(self, depth: int) -> VerbsCompletions:
        return VerbsCompletions(self, depth)

    def register(self, address: int, length: int) -> VerbsRegion:
        made = self.attempt(
            f"{self.name} cannot register {length} bytes",
            _locking(length),
            lambda: self.binding.region(self._domain, address, length),
        )
        return VerbsRegion(made, address, length)

    def queue_pair(self, completions: CompletionQueue, depth: int) -> VerbsQueuePair:
        assert isinstance(completions, VerbsCompletions)
        return VerbsQueuePair(self, self._domain, completions.queue, depth)

    def close(self) -> None:
        if self._domain is not None:
            self._domain.close()
        self.context.close()


class VerbsRegion:
    """Implements `dgpp.net.verbs.library.Region`."""

    def __init__(self, made: Any, address: int, length: int) -> None:
        self._made = made
        self.address, self.length = address, length
        self.lkey, self.rkey = int(made.lkey), int(made.rkey)

    def close(self) -> None:
        self._made.close()


class VerbsCompletions:
    """Implements `dgpp.net.verbs.library.CompletionQueue`."""

    def __init__(self, port: VerbsPort, depth: int) -> None:
        self._binding = port.binding
        what = f"no completion queue of {depth} on {port.name}"
        self._channel, self.fd = port.attempt(
            what, _ROOM, lambda: port.binding.channel(port.context)
        )
        try:
            self.queue = port.attempt(
                what, _ROOM, lambda: port.binding.queue(port.context, self._channel, depth)
            )
        except DeviceError:
            self._channel.close()
            raise

    def arm(self) -> None:
        self.queue.req_notify()

    def quiet(self) -> None:
        self._binding.take_event(self._channel, self.queue)
        self.queue.ack_events(1)

    def close(self) -> None:
        self.queue.close()
        self._channel.close()


class VerbsQueuePair:
    """Implements `dgpp.net.verbs.library.QueuePair`; INIT as soon as it is made."""

    def __init__(self, port: VerbsPort, domain: Any, queue: Any, depth: int) -> None:
        self._port = port
        self.made = port.attempt(
            f"no queue pair of {depth} on {port.name}",
            _ROOM,
            lambda: port.binding.pair(port.context, domain, queue, depth),
        )
        try:
            self.calls = port.binding.calls(port.context, self.made)
        except BaseException:
            self.made.close()
            raise
        self.address = Address(int(self.made.qp_num), secrets.randbits(NUMBER_BITS), port.gid)

    def connect(self, peer: Address, mtu: int) -> None:
        port = self._port
        port.attempt(
            f"{port.name} finds no way to {IPv6Address(peer.gid).exploded}",
            "ping it; pin addresses of one network with DGPP_ROCE_GID_INDICES",
            lambda: port.binding.connect(self.made, port.index, self.address.psn, peer, mtu),
        )

    def close(self) -> None:
        self.made.close()


def _locking(length: int) -> str:
    """What to do where memory of `length` bytes cannot be locked."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if 0 <= soft < length:
        return (
            f"at most {soft >> 10} KiB of memory can be locked; see docs/networking.md on memlock"
        )
    return "the memory must be mapped for reading and writing"
