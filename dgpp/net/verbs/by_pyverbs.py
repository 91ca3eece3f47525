"""The verbs library through pyverbs: rdma-core's own, releases 44 to 59."""

from __future__ import annotations

import contextlib
import resource
import secrets
from collections.abc import Callable
from importlib import import_module
from ipaddress import IPv6Address
from pathlib import Path
from types import ModuleType
from typing import Any

from dgpp.net.roce import PORT, RoceDevice
from dgpp.net.verbs.errors import DeviceError, LibraryError
from dgpp.net.verbs.library import (
    MIN_RNR_TIMER,
    MTUS,
    NUMBER_BITS,
    RETRIES,
    RNR_RETRIES,
    TIMEOUT,
    Address,
    CompletionQueue,
)
from dgpp.net.verbs.native import calls_of

_HOPS = 64


def load() -> PyverbsLibrary:
    """Raises LibraryError where pyverbs is missing or built for another rdma-core."""
    try:
        parts = {
            name: import_module(f"pyverbs.{name}")
            for name in ("addr", "cq", "device", "mr", "pd", "pyverbs_error", "qp", "wr")
        }
        numbers = _numbers()
    except ImportError as error:
        raise LibraryError(
            f"roce bus: no usable pyverbs ({error}): install the system's python3-pyverbs, of the "
            "release of its rdma-core, where this Python finds it"
        ) from error
    return PyverbsLibrary(parts, numbers)


def _numbers() -> dict[str, int]:
    """Every constant by its name: flat in one release, in classes of enumerations in another."""
    try:
        flat: ModuleType = import_module("pyverbs.enums")
    except ImportError:
        flat = import_module("pyverbs.libibverbs_enums")
    found: dict[str, int] = {}
    for name, value in vars(flat).items():
        if isinstance(value, int):
            found[name] = int(value)
        elif isinstance(value, type):
            members: dict[str, Any] = getattr(value, "__members__", {})
            found.update((member, int(number)) for member, number in members.items())
    return found


class PyverbsLibrary:
    """The loaded library."""

    def __init__(self, parts: dict[str, ModuleType], numbers: dict[str, int]) -> None:
        self.addr: Any = parts["addr"]
        self.cq: Any = parts["cq"]
        self.device: Any = parts["device"]
        self.mr: Any = parts["mr"]
        self.pd: Any = parts["pd"]
        self.qp: Any = parts["qp"]
        self.wr: Any = parts["wr"]
        self.error: type[Exception] = parts["pyverbs_error"].PyverbsError
        self.numbers = numbers
        self.access = (
            numbers["IBV_ACCESS_LOCAL_WRITE"]
            | numbers["IBV_ACCESS_REMOTE_WRITE"]
            | numbers["IBV_ACCESS_REMOTE_READ"]
        )

    def open(self, device: RoceDevice, pinned: int = -1) -> PyverbsPort:
        """The device's first port, sending from GID `pinned`, else the first that serves.

        Raises DeviceError, or ConfigError where no address serves.
        """
        gid = device.gid(pinned)
        if not device.active:
            raise DeviceError(
                f"roce bus: {device.name} is {device.state}: check its cable and the other end, "
                "then `ip link`"
            )
        return PyverbsPort(self, device, gid.index)

    def attempt(self, what: str, remedy: str, make: Callable[[], Any]) -> Any:
        """What `make` returns. Raises DeviceError."""
        try:
            return make()
        except self.error as error:
            raise DeviceError(f"roce bus: {what}: {error}: {remedy}") from error


class PyverbsPort:
    """Implements `dgpp.net.verbs.library.Port`."""

    def __init__(self, library: PyverbsLibrary, device: RoceDevice, index: int) -> None:
        name = device.name
        self.library, self.name, self.index, self.gbps = library, name, index, device.gbps
        attempt = library.attempt
        self._context = attempt(
            f"cannot open {name}",
            "it needs /dev/infiniband and the right to use it; `dgpp discover-roce` lists devices",
            lambda: library.device.Context(name=name),
        )
        self._domain: Any = None
        try:
            port, gid = attempt(
                f"cannot ask {name} for port {PORT}, GID {index}",
                "`dgpp discover-roce` lists its addresses",
                lambda: (
                    self._context.query_port(PORT),
                    self._context.query_gid(PORT, index).gid,
                ),
            )
            self._domain = attempt(
                f"no protection domain on {name}",
                "other processes hold them all",
                lambda: library.pd.PD(self._context),
            )
        except DeviceError:
            self.close()
            raise
        self.gid = IPv6Address(gid).packed
        self.mtu = MTUS[port.active_mtu - library.numbers["IBV_MTU_256"]]

    def completion_queue(self, depth: int) -> PyverbsCompletions:
        made = self.library.attempt(
            f"no completion queue of {depth} on {self.name}",
            "`ibv_devinfo -v` says what it has room for",
            lambda: PyverbsCompletions(self.library, self._context, depth),
        )
        assert isinstance(made, PyverbsCompletions)
        return made

    def register(self, address: int, length: int) -> PyverbsRegion:
        library = self.library
        made = library.attempt(
            f"{self.name} cannot register {length} bytes",
            _locking(length),
            lambda: library.mr.MR(self._domain, length, library.access, address=address),
        )
        return PyverbsRegion(made, address, length)

    def queue_pair(self, completions: CompletionQueue, depth: int) -> PyverbsQueuePair:
        assert isinstance(completions, PyverbsCompletions)
        return PyverbsQueuePair(self, self._domain, self._context, completions.queue, depth)

    def close(self) -> None:
        if self._domain is not None:
            self._domain.close()
        self._context.close()


class PyverbsRegion:
    """Implements `dgpp.net.verbs.library.Region`."""

    def __init__(self, made: Any, address: int, length: int) -> None:
        self._made = made
        self.address, self.length = address, length
        self.lkey, self.rkey = int(made.lkey), int(made.rkey)

    def close(self) -> None:
        self._made.close()


class PyverbsCompletions:
    """Implements `dgpp.net.verbs.library.CompletionQueue`."""

    def __init__(self, library: PyverbsLibrary, context: Any, depth: int) -> None:
        before = _event_fds()
        self._channel = library.cq.CompChannel(context)
        # Release 44 does not tell.
        self.fd = next(iter(_event_fds() - before), getattr(self._channel, "fd", -1))
        self.queue = library.cq.CQ(context, depth, None, self._channel, 0)

    def arm(self) -> None:
        self.queue.req_notify()

    def quiet(self) -> None:
        self._channel.get_cq_event(self.queue)
        self.queue.ack_events(1)

    def close(self) -> None:
        self.queue.close()
        self._channel.close()


class PyverbsQueuePair:
    """Implements `dgpp.net.verbs.library.QueuePair`; INIT as soon as it is made."""

    def __init__(
        self, port: PyverbsPort, domain: Any, context: Any, completions: Any, depth: int
    ) -> None:
        self._port = port
        library = self._library = port.library
        numbers = self._numbers = library.numbers
        capacity = library.qp.QPCap(depth, depth, 1, 1, 0)
        initial = library.qp.QPInitAttr(
            qp_type=numbers["IBV_QPT_RC"], scq=completions, rcq=completions, cap=capacity,
            sq_sig_all=0,
        )  # fmt: skip
        attributes = library.qp.QPAttr(port_num=PORT)
        # The constructor goes to INIT by itself, with these rights or none.
        attributes.qp_access_flags = library.access
        self._pair = library.attempt(
            f"no queue pair of {depth} on {port.name}",
            "`ibv_devinfo -v` says what it has room for",
            lambda: library.qp.QP(domain, initial, attributes),
        )
        psn = secrets.randbits(NUMBER_BITS)
        self.address = Address(int(self._pair.qp_num), psn, port.gid)
        self.calls = calls_of(self._pair, int(context.cmd_fd), self.address.number)

    def connect(self, peer: Address, mtu: int) -> None:
        library, numbers = self._library, self._numbers
        attributes = library.qp.QPAttr(port_num=PORT)
        attributes.dest_qp_num, attributes.rq_psn = peer.number, peer.psn
        attributes.sq_psn = self.address.psn
        attributes.path_mtu = numbers[f"IBV_MTU_{mtu}"]
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = MIN_RNR_TIMER
        attributes.timeout = TIMEOUT
        attributes.retry_cnt, attributes.rnr_retry = RETRIES, RNR_RETRIES
        remote = str(IPv6Address(peer.gid).exploded)
        attributes.ah_attr = library.addr.AHAttr(
            is_global=1,
            port_num=PORT,
            gr=library.addr.GlobalRoute(
                dgid=library.addr.GID(remote), sgid_index=self._port.index, hop_limit=_HOPS
            ),
        )
        library.attempt(
            f"{self._port.name} finds no way to {remote}",
            "ping it; pin addresses of one network with DGPP_ROCE_GID_INDICES",
            lambda: self._pair.to_rts(attributes),
        )

    def close(self) -> None:
        self._pair.close()


def _event_fds() -> set[int]:
    """Open completion channels of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "infinibandevent" in str(entry.readlink()):
                found.add(int(entry.name))
    return found


def _locking(length: int) -> str:
    """What to do where memory of `length` bytes cannot be locked."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if 0 <= soft < length:
        return (
            f"at most {soft >> 10} KiB of memory can be locked; see docs/networking.md on memlock"
        )
    return "the memory must be mapped for reading and writing"
