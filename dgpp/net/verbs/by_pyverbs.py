"""The verbs library through pyverbs: rdma-core's own, releases 44 to 59.

Requests are kept and posted again: pyverbs frees one only when it is closed.
"""

from __future__ import annotations

import errno
import resource
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from ipaddress import IPv6Address
from types import ModuleType
from typing import Any

from dgpp.net.roce import PORT, RoceDevice
from dgpp.net.verbs.errors import DeviceError, LibraryError, PostError
from dgpp.net.verbs.library import (
    MIN_RNR_TIMER,
    MTUS,
    NUMBER_BITS,
    RETRIES,
    RNR_RETRIES,
    TIMEOUT,
    Address,
    Completion,
    CompletionQueue,
    Event,
    Status,
)

REQUESTS = 256
"""Requests a queue pair keeps; a pool's slots are fewer."""
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
        self.statuses = {
            numbers["IBV_WC_SUCCESS"]: Status.DONE,
            numbers["IBV_WC_RETRY_EXC_ERR"]: Status.UNREACHABLE,
            numbers["IBV_WC_RNR_RETRY_EXC_ERR"]: Status.NOT_READY,
            numbers["IBV_WC_REM_ACCESS_ERR"]: Status.REMOTE_ACCESS,
            numbers["IBV_WC_LOC_PROT_ERR"]: Status.LOCAL_ACCESS,
            numbers["IBV_WC_LOC_LEN_ERR"]: Status.LOCAL_ACCESS,
            numbers["IBV_WC_WR_FLUSH_ERR"]: Status.FLUSHED,
        }
        self.events = {
            numbers["IBV_WC_RECV"]: Event.RECEIVED,
            numbers["IBV_WC_RECV_RDMA_WITH_IMM"]: Event.WRITTEN,
        }

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
        return PyverbsPort(self, device.name, gid.index)

    def attempt(self, what: str, remedy: str, make: Callable[[], Any]) -> Any:
        """What `make` returns. Raises DeviceError."""
        try:
            return make()
        except self.error as error:
            raise DeviceError(f"roce bus: {what}: {error}: {remedy}") from error


class PyverbsPort:
    """Implements `dgpp.net.verbs.library.Port`."""

    def __init__(self, library: PyverbsLibrary, name: str, index: int) -> None:
        self.library, self.name, self.index = library, name, index
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
            lambda: self.library.cq.CQ(self._context, depth, None, None, 0),
        )
        return PyverbsCompletions(self.library, made)

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
        return PyverbsQueuePair(self, self._domain, completions.queue, depth)

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

    def __init__(self, library: PyverbsLibrary, queue: Any) -> None:
        self.queue = queue
        self._statuses, self._events = library.statuses, library.events

    def poll(self, most: int) -> list[Completion]:
        _count, entries = self.queue.poll(most)
        return [self._completion(entry) for entry in entries]

    def _completion(self, entry: Any) -> Completion:
        status = self._statuses.get(entry.status, Status.OTHER)
        if status is not Status.DONE:
            detail = f"status {entry.status}, vendor {entry.vendor_err:#x}"
            return Completion(entry.wr_id, Event.FAILED, status, detail=detail)
        event = self._events.get(entry.opcode, Event.SENT)
        if event is Event.SENT:
            return Completion(entry.wr_id, event)
        immediate = socket.ntohl(entry.imm_data) if event is Event.WRITTEN else 0
        return Completion(entry.wr_id, event, status, immediate, entry.byte_len)

    def close(self) -> None:
        self.queue.close()


class _Requests:
    """Requests by what they say, the least recently posted closed when there are too many."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    def get(self, key: tuple[int, ...], make: Callable[[], Any]) -> Any:
        request = self._kept.get(key)
        if request is not None:
            self._kept.move_to_end(key)
            return request
        if len(self._kept) >= REQUESTS:
            # Posted requests were copied into the adapter's queue: nothing reads this one any more.
            self._kept.popitem(last=False)[1].close()
        request = self._kept[key] = make()
        return request

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()


class PyverbsQueuePair:
    """Implements `dgpp.net.verbs.library.QueuePair`; INIT as soon as it is made."""

    def __init__(self, port: PyverbsPort, domain: Any, completions: Any, depth: int) -> None:
        self._port = port
        library = self._library = port.library
        numbers = self._numbers = library.numbers
        self._depth = depth
        self._sends, self._receives = _Requests(), _Requests()
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

    def post_receive(self, wr_id: int, address: int, length: int, lkey: int) -> None:
        wr = self._library.wr

        def make() -> Any:
            element = wr.SGE(address, length, lkey)
            try:
                return wr.RecvWR(num_sge=1, sg=[element])
            finally:
                element.close()

        request = self._receives.get((address, length, lkey), make)
        request.wr_id = wr_id
        self._post(self._pair.post_recv, request)

    def post_send(
        self, wr_id: int, address: int, length: int, lkey: int, *, signaled: bool = True
    ) -> None:
        request = self._request("IBV_WR_SEND", address, length, lkey, 0, 0, signaled)
        request.wr_id = wr_id
        self._post(self._pair.post_send, request)

    def post_write(
        self, wr_id: int, address: int, length: int, lkey: int, remote: int, rkey: int, *,
        immediate: int | None = None, signaled: bool = True,
    ) -> None:  # fmt: skip
        opcode = "IBV_WR_RDMA_WRITE" if immediate is None else "IBV_WR_RDMA_WRITE_WITH_IMM"
        request = self._request(opcode, address, length, lkey, remote, rkey, signaled)
        request.wr_id = wr_id
        if immediate is not None:
            request.imm_data = socket.htonl(immediate)
        self._post(self._pair.post_send, request)

    def close(self) -> None:
        self._pair.close()
        self._sends.close()
        self._receives.close()

    def _request(
        self, opcode: str, address: int, length: int, lkey: int, remote: int, rkey: int,
        signaled: bool,
    ) -> Any:  # fmt: skip
        wr = self._library.wr
        code = self._numbers[opcode]
        flags = self._numbers["IBV_SEND_SIGNALED"] if signaled else 0

        def make() -> Any:
            element = wr.SGE(address, length, lkey)
            try:
                request = wr.SendWR(opcode=code, num_sge=1, send_flags=flags, sg=[element])
            finally:
                element.close()
            if code != self._numbers["IBV_WR_SEND"]:
                request.set_wr_rdma(rkey, remote)
            return request

        return self._sends.get((code, flags, address, length, lkey, remote, rkey), make)

    def _post(self, post: Callable[[Any], None], request: Any) -> None:
        try:
            post(request)
        except self._library.error as error:
            full = getattr(error, "error_code", 0) == errno.ENOMEM
            why = f"its queue of {self._depth} is full" if full else "it is broken"
            raise PostError(
                f"roce bus: queue pair {self.address.number} of {self._port.name} takes no work: "
                f"{why} ({error})"
            ) from error


def _locking(length: int) -> str:
    """What to do where memory of `length` bytes cannot be locked."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if 0 <= soft < length:
        return (
            f"at most {soft >> 10} KiB of memory can be locked; see docs/networking.md on memlock"
        )
    return "the memory must be mapped for reading and writing"
