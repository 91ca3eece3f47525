"""libibverbs through pyverbs: rdma-core's own package, releases 44 to 59."""

from __future__ import annotations

import contextlib
from importlib import import_module
from ipaddress import IPv6Address
from pathlib import Path
from types import ModuleType
from typing import Any

from dgpp.net.roce import PORT
from dgpp.net.verbs.errors import LibraryError
from dgpp.net.verbs.library import (
    HOPS,
    MIN_RNR_TIMER,
    MTUS,
    RETRIES,
    RNR_RETRIES,
    TIMEOUT,
    Address,
    Calls,
)
from dgpp.net.verbs.native import File, Where, calls_of


def load() -> PyverbsBinding:
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
    return PyverbsBinding(parts, numbers)


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


class PyverbsBinding:
    """Implements `dgpp.net.verbs.binding.Binding`."""

    name = "pyverbs"

    def __init__(self, parts: dict[str, ModuleType], numbers: dict[str, int]) -> None:
        self.addr: Any = parts["addr"]
        self.cq: Any = parts["cq"]
        self.device: Any = parts["device"]
        self.mr: Any = parts["mr"]
        self.pd: Any = parts["pd"]
        self.qp: Any = parts["qp"]
        self.wr: Any = parts["wr"]
        self.errors: tuple[type[Exception], ...] = (parts["pyverbs_error"].PyverbsError,)
        self.numbers = numbers
        self._access = (
            numbers["IBV_ACCESS_LOCAL_WRITE"]
            | numbers["IBV_ACCESS_REMOTE_WRITE"]
            | numbers["IBV_ACCESS_REMOTE_READ"]
        )

    def open(self, device: str) -> Any:
        return self.device.Context(name=device)

    def port(self, context: Any, index: int) -> tuple[int, bytes]:
        told = context.query_port(PORT)
        gid = context.query_gid(PORT, index).gid
        return MTUS[told.active_mtu - self.numbers["IBV_MTU_256"]], IPv6Address(gid).packed

    def domain(self, context: Any) -> Any:
        return self.pd.PD(context)

    def region(self, domain: Any, address: int, length: int) -> Any:
        return self.mr.MR(domain, length, self._access, address=address)

    def channel(self, context: Any) -> tuple[Any, int]:
        before = _event_fds()
        channel = self.cq.CompChannel(context)
        # Release 44 does not tell.
        return channel, next(iter(_event_fds() - before), getattr(channel, "fd", -1))

    def queue(self, context: Any, channel: Any, depth: int) -> Any:
        return self.cq.CQ(context, depth, None, channel, 0)

    def take_event(self, channel: Any, queue: Any) -> None:
        channel.get_cq_event(queue)

    def pair(self, context: Any, domain: Any, queue: Any, depth: int) -> Any:
        initial = self.qp.QPInitAttr(
            qp_type=self.numbers["IBV_QPT_RC"], scq=queue, rcq=queue,
            cap=self.qp.QPCap(depth, depth, 1, 1, 0), sq_sig_all=0,
        )  # fmt: skip
        attributes = self.qp.QPAttr(port_num=PORT)
        # The constructor goes to INIT by itself, with these rights or none.
        attributes.qp_access_flags = self._access
        return self.qp.QP(domain, initial, attributes)

    def connect(self, pair: Any, index: int, psn: int, peer: Address, mtu: int) -> None:
        attributes = self.qp.QPAttr(port_num=PORT)
        attributes.dest_qp_num, attributes.rq_psn = peer.number, peer.psn
        attributes.sq_psn = psn
        attributes.path_mtu = self.numbers[f"IBV_MTU_{mtu}"]
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = MIN_RNR_TIMER
        attributes.timeout = TIMEOUT
        attributes.retry_cnt, attributes.rnr_retry = RETRIES, RNR_RETRIES
        remote = self.addr.GID(IPv6Address(peer.gid).exploded)
        attributes.ah_attr = self.addr.AHAttr(
            is_global=1,
            port_num=PORT,
            gr=self.addr.GlobalRoute(dgid=remote, sgid_index=index, hop_limit=HOPS),
        )
        pair.to_rts(attributes)

    def calls(self, context: Any, pair: Any) -> Calls:
        return calls_of(pair, File(Where.COMMANDS, int(context.cmd_fd)), "pyverbs 44 to 59")


def _event_fds() -> set[int]:
    """Open completion channels of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "infinibandevent" in str(entry.readlink()):
                found.add(int(entry.name))
    return found
