"""libibverbs through the package `ibverbs` of PyPI, from release 2026.10 on.

It has objects for all that the bus needs and tells no address of what they hold.
"""

from __future__ import annotations

import errno
from importlib import import_module
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


def load() -> IbverbsBinding:
    """Raises LibraryError where the package or the system's libibverbs is missing."""
    try:
        return IbverbsBinding(import_module("ibverbs"))
    except ImportError as error:
        raise LibraryError(
            f"roce bus: no usable ibverbs ({error}): pip install 'dgpp[rdma-ibverbs]', and the "
            "system's libibverbs1"
        ) from error


class IbverbsBinding:
    """Implements `dgpp.net.verbs.binding.Binding`."""

    name = "ibverbs"

    def __init__(self, package: Any) -> None:
        self._package = package
        self.errors: tuple[type[Exception], ...] = (package.VerbsError,)
        flags = package.AccessFlags
        self._access = int(flags.LOCAL_WRITE | flags.REMOTE_WRITE | flags.REMOTE_READ)

    def open(self, device: str) -> Any:
        for found in self._package.get_device_list():
            if found.name == device:
                return found.open()
        raise self._package.VerbsError(f"opening {device}", errno.ENODEV)

    def port(self, context: Any, index: int) -> tuple[int, bytes]:
        # Numbers of an ibv_mtu begin with 1.
        mtu = MTUS[context.query_port(PORT).active_mtu - 1]
        return mtu, bytes(context.query_gid(PORT, index).raw)

    def domain(self, context: Any) -> Any:
        return context.alloc_pd()

    def region(self, domain: Any, address: int, length: int) -> Any:
        return domain.reg_mr(address, length, self._access)

    def channel(self, context: Any) -> tuple[Any, int]:
        channel = context.create_comp_channel()
        return channel, int(channel.fd)

    def queue(self, context: Any, channel: Any, depth: int) -> Any:
        return context.create_cq(depth, channel=channel)

    def take_event(self, channel: Any, queue: Any) -> None:
        channel.get_cq_event()

    def pair(self, context: Any, domain: Any, queue: Any, depth: int) -> Any:
        made = domain.create_qp(
            self._package.QPInitAttr(
                send_cq=queue, recv_cq=queue, qp_type=self._package.QPType.RC, max_send_wr=depth,
                max_recv_wr=depth, max_send_sge=1, max_recv_sge=1, max_inline_data=0,
                sq_sig_all=False,
            )
        )  # fmt: skip
        try:
            made.to_init(PORT, self._access)
        except BaseException:
            made.close()
            raise
        return made

    def connect(self, pair: Any, index: int, psn: int, peer: Address, mtu: int) -> None:
        number = MTUS.index(mtu) + 1
        remote = self._package.QPInfo(
            qp_num=peer.number, psn=peer.psn, lid=0, gid=peer.gid, port=PORT, mtu=number
        )
        pair.to_rtr(
            remote, sgid_index=index, mtu=number, hop_limit=HOPS, min_rnr_timer=MIN_RNR_TIMER,
            max_dest_rd_atomic=1,
        )  # fmt: skip
        pair.to_rts(psn, timeout=TIMEOUT, retry_cnt=RETRIES, rnr_retry=RNR_RETRIES, max_rd_atomic=1)

    def calls(self, context: Any, pair: Any) -> Calls:
        return calls_of(pair, File(Where.EVENTS, int(context.async_fd)), "ibverbs 2026.10")
