"""The packages that bind libibverbs, `pyverbs` and `ibverbs`, as far as the bus asks them, over one
made-up libibverbs whose devices are ports of the fake network.

Their objects hold, as the real ones do, nothing but the address of a C structure; that of a queue
pair leads to the functions that post to it and poll, as in <infiniband/verbs.h>.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
from functools import partial
from ipaddress import IPv6Address
from itertools import count
from types import ModuleType, SimpleNamespace

import fake_adapter as adapter
from fake_verbs import Fabric

POINTER = ctypes.c_void_p
_CALL = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER)
_POLL = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, ctypes.c_int, POINTER)
_COMPILED = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 3)
RIGHTS = 7
"""Local write, remote write, remote read."""


class ibv_context(ctypes.Structure):
    _fields_ = (
        ("device", POINTER), ("ops", POINTER * 32), ("cmd_fd", ctypes.c_int),
        ("async_fd", ctypes.c_int), ("num_comp_vectors", ctypes.c_int),
    )  # fmt: skip


class ibv_cq(ctypes.Structure):
    _fields_ = (("context", POINTER), ("channel", POINTER), ("cq_context", POINTER))


class ibv_qp(ctypes.Structure):
    _fields_ = (
        ("context", POINTER), ("qp_context", POINTER), ("pd", POINTER), ("send_cq", POINTER),
        ("recv_cq", POINTER), ("srq", POINTER), ("handle", ctypes.c_uint32),
        ("qp_num", ctypes.c_uint32),
    )  # fmt: skip


class Holder(ctypes.Structure):
    """An object of a package: the address of what it stands for."""

    _fields_ = (("held", POINTER),)

    def __init__(self, held: ctypes.Structure | None = None) -> None:
        super().__init__(None if held is None else ctypes.addressof(held))


class VerbError(OSError):
    """A verb failed; both packages have one of their own."""

    def __init__(self, operation: str, number: int = errno.EIO) -> None:
        super().__init__(number, f"{operation} failed")


class Verbs:
    """libibverbs: `refuse` names a verb that fails; `alive` is what nobody closed
    yet; `hidden`: its structures have another layout."""

    def __init__(self, *devices: str) -> None:
        self.fabric = Fabric()
        self.ports = {name: self.fabric.port(name) for name in devices}
        self.gids = {name: [bytes(16), port.gid] for name, port in self.ports.items()}
        self.refuse = ""
        self.hidden = False
        self.alive: list[tuple[str, str]] = []
        self.connected: list[dict[str, int]] = []
        """What queue pairs were told, in the order in which they were connected."""
        self._fds = count(700)
        self._kept: list[object] = []

    def make(self, device: str, verb: str) -> None:
        if verb == self.refuse:
            raise VerbError(verb)
        self.alive.append((device, verb))

    def context(self) -> ibv_context:
        made = ibv_context(cmd_fd=next(self._fds), async_fd=next(self._fds))
        functions = [
            _CALL(lambda pair, request, bad: self._post(adapter.post_send, pair, request, bad)),
            _CALL(lambda pair, request, bad: self._post(adapter.post_receive, pair, request, bad)),
            _POLL(lambda queue, most, wc: self._poll(queue, most, wc)),
        ]
        for place, function in zip((25, 26, 11), functions, strict=True):
            made.ops[place] = ctypes.cast(function, POINTER).value
        self._kept += [made, *functions]
        return made

    def queue(self, context: ibv_context, words: int) -> ibv_cq:
        made = ibv_cq(context=ctypes.addressof(context), cq_context=words)
        self._kept.append(made)
        return made

    def pair(self, context: ibv_context, queue: ibv_cq, record: int, number: int) -> ibv_qp:
        at = ctypes.addressof(queue)
        made = ibv_qp(
            context=0 if self.hidden else ctypes.addressof(context),
            qp_context=record, send_cq=at, recv_cq=at, qp_num=number,
        )  # fmt: skip
        self._kept.append(made)
        return made

    @staticmethod
    def _post(function, pair, request, bad) -> int:
        record = ibv_qp.from_address(pair).qp_context
        return _COMPILED(function.address)(record, request, bad)

    @staticmethod
    def _poll(queue, most, wc) -> int:
        return _COMPILED(adapter.poll.address)(ibv_cq.from_address(queue).cq_context, most, wc)


class Made:
    """What is made of a device and closed once, the device's context last of all."""

    def __init__(self, context: Context, verb: str) -> None:
        context.verbs.make(context.name, verb)
        self.context, self._verb = context, verb

    def close(self) -> None:
        self.context.verbs.alive.remove((self.context.name, self._verb))


class Context(Made):
    def __init__(self, verbs: Verbs, name: str) -> None:
        self.verbs, self.name = verbs, name
        super().__init__(self, "open")
        self.port, self.native = verbs.ports[name], verbs.context()

    def query_port(self, number: int) -> SimpleNamespace:
        assert number == 1
        if self.verbs.refuse == "query":
            raise VerbError("query")
        return SimpleNamespace(active_mtu=(self.port.mtu // 256).bit_length())

    def gid(self, number: int, index: int) -> bytes:
        assert number == 1
        return self.verbs.gids[self.name][index]

    def close(self) -> None:
        own = [verb for name, verb in self.verbs.alive if name == self.name]
        assert own == ["open"], own
        super().close()


class Domain(Made):
    def __init__(self, context: Context) -> None:
        super().__init__(context, "domain")


class Region(Made):
    def __init__(self, context: Context, address: int, length: int, access: int) -> None:
        super().__init__(context, "region")
        assert access == RIGHTS
        self._made = context.port.register(address, length)
        self.lkey, self.rkey = self._made.lkey, self._made.rkey

    def close(self) -> None:
        super().close()
        self._made.close()


class Channel(Made):
    def __init__(self, context: Context) -> None:
        super().__init__(context, "channel")
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def close(self) -> None:
        super().close()
        os.close(self.fd)


class Queue(Made):
    def __init__(self, context: Context, depth: int, channel: Channel) -> None:
        super().__init__(context, "queue")
        self._channel, self._unread = channel, 0
        self.made = context.port.completion_queue(depth)
        self.native = context.verbs.queue(context.native, int(self.made.words.ctypes.data))

    def req_notify(self) -> None:
        # Work moves only when it is polled: something may have reported at once.
        os.eventfd_write(self._channel.fd, 1)

    def take(self) -> None:
        assert os.eventfd_read(self._channel.fd)
        self._unread += 1

    def ack_events(self, number: int) -> None:
        self._unread -= number
        assert self._unread == 0

    def close(self) -> None:
        super().close()
        self.made.close()


class Pair(Holder):
    """`most` is what it may hold: sends, receives, pieces of each, bytes inline."""

    def __init__(self, context: Context, queue: Queue, most: tuple[int, ...]) -> None:
        self._life = Made(context, "pair")
        depth = most[0]
        assert most == (depth, depth, 1, 1, 0)
        self._verbs, self._made = context.verbs, context.port.queue_pair(queue.made, depth)
        self.qp_num = self._made.address.number
        native = (context.native, queue.native, self._made.calls.pair, self.qp_num)
        super().__init__(context.verbs.pair(*native))

    def reach(self, peer: int, gid: bytes, told: dict[str, int]) -> None:
        other = self._verbs.fabric.pairs.get(peer)
        if other is None or other.port.gid != gid:
            raise VerbError("connect")
        self._made.connect(other.address, 128 << told["mtu"])
        self._verbs.connected.append(told)

    def close(self) -> None:
        self._life.close()
        self._made.close()


# pyverbs ---------------------------------------------------------------------------------------


class PyverbsContext(Context):
    def __init__(self, verbs: Verbs, name: str) -> None:
        if name not in verbs.ports:
            raise VerbError("open", errno.ENODEV)
        super().__init__(verbs, name)
        self.cmd_fd = self.native.cmd_fd

    def query_gid(self, number: int, index: int) -> SimpleNamespace:
        return SimpleNamespace(gid=str(IPv6Address(self.gid(number, index))))


class PyverbsChannel(Channel):
    def get_cq_event(self, queue: Queue) -> None:
        queue.take()


class PyverbsPair(Pair):
    def __init__(self, domain, initial, attributes) -> None:
        assert (initial.qp_type, initial.sq_sig_all) == (2, 0)
        assert initial.scq is initial.rcq
        assert attributes.qp_access_flags == RIGHTS
        super().__init__(domain.context, initial.scq, initial.cap)

    def to_rts(self, told) -> None:
        way = told.ah_attr.gr
        assert told.ah_attr.is_global == told.ah_attr.port_num == told.port_num == 1
        self.reach(told.dest_qp_num, IPv6Address(way.dgid).packed, {
            "mtu": told.path_mtu, "hops": way.hop_limit, "index": way.sgid_index,
            "rq_psn": told.rq_psn, "sq_psn": told.sq_psn, "rnr_timer": told.min_rnr_timer,
            "timeout": told.timeout, "retries": told.retry_cnt, "rnr": told.rnr_retry,
            "reads": told.max_rd_atomic, "dest_reads": told.max_dest_rd_atomic,
        })  # fmt: skip


def _pyverbs_queue(context, depth, _own, channel, _vector) -> Queue:
    return Queue(context, depth, channel)


def _pyverbs_region(domain, length, access, address) -> Region:
    return Region(domain.context, address, length, access)


def _pyverbs_room(*most: int) -> tuple[int, ...]:
    return most


def _pyverbs_constants(*, flat: bool) -> dict[str, object]:
    values = {
        "IBV_ACCESS_LOCAL_WRITE": 1, "IBV_ACCESS_REMOTE_WRITE": 2, "IBV_ACCESS_REMOTE_READ": 4,
        "IBV_QPT_RC": 2,
        **{f"IBV_MTU_{128 << number}": number for number in range(1, 6)},
    }  # fmt: skip
    return dict(values) if flat else {"ibv_all": enum.IntEnum("ibv_all", values)}


def pyverbs(verbs: Verbs, *, flat: bool = True) -> dict[str, ModuleType]:
    """Its modules, as of release 44, or else 59."""
    plain = SimpleNamespace
    inside = {
        "addr": {"AHAttr": plain, "GlobalRoute": plain, "GID": str},
        "cq": {"CompChannel": PyverbsChannel, "CQ": _pyverbs_queue},
        "device": {"Context": partial(PyverbsContext, verbs)},
        "mr": {"MR": _pyverbs_region},
        "pd": {"PD": Domain},
        "pyverbs_error": {"PyverbsError": VerbError},
        "qp": {"QP": PyverbsPair, "QPAttr": plain, "QPInitAttr": plain, "QPCap": _pyverbs_room},
        "wr": {},
        "enums" if flat else "libibverbs_enums": _pyverbs_constants(flat=flat),
    }
    parts = {f"pyverbs.{name}": _module(f"pyverbs.{name}", **has) for name, has in inside.items()}
    return {"pyverbs": _module("pyverbs")} | parts


# ibverbs ---------------------------------------------------------------------------------------


class IbverbsContext(Context):
    def __init__(self, verbs: Verbs, name: str) -> None:
        super().__init__(verbs, name)
        self.async_fd = self.native.async_fd

    def query_gid(self, number: int, index: int) -> SimpleNamespace:
        return SimpleNamespace(raw=self.gid(number, index))

    def alloc_pd(self) -> IbverbsDomain:
        return IbverbsDomain(self)

    def create_comp_channel(self) -> IbverbsChannel:
        return IbverbsChannel(self)

    def create_cq(self, cqe: int, channel: IbverbsChannel) -> Queue:
        channel.queue = Queue(self, cqe, channel)
        return channel.queue


class IbverbsChannel(Channel):
    queue: Queue

    def get_cq_event(self) -> Queue:
        self.queue.take()
        return self.queue


class IbverbsDomain(Domain):
    def reg_mr(self, address: int, length: int, access: int) -> Region:
        return Region(self.context, address, length, access)

    def create_qp(self, told) -> IbverbsPair:
        assert (int(told.qp_type), told.sq_sig_all) == (2, False)
        assert told.send_cq is told.recv_cq
        most = (
            told.max_send_wr, told.max_recv_wr, told.max_send_sge, told.max_recv_sge,
            told.max_inline_data,
        )  # fmt: skip
        return IbverbsPair(self.context, told.send_cq, most)


class IbverbsPair(Pair):
    def to_init(self, port: int, access: int) -> None:
        assert (port, access) == (1, RIGHTS)
        if self._verbs.refuse == "init":
            raise VerbError("init")

    def to_rtr(self, remote, **told) -> None:
        assert remote.mtu == told["mtu"]
        self._remote = remote
        self._told = {
            "mtu": told["mtu"], "hops": told["hop_limit"], "index": told["sgid_index"],
            "rq_psn": remote.psn, "rnr_timer": told["min_rnr_timer"],
            "dest_reads": told["max_dest_rd_atomic"],
        }  # fmt: skip

    def to_rts(self, psn: int, **told) -> None:
        self.reach(self._remote.qp_num, self._remote.gid, self._told | {
            "sq_psn": psn, "timeout": told["timeout"], "retries": told["retry_cnt"],
            "rnr": told["rnr_retry"], "reads": told["max_rd_atomic"],
        })  # fmt: skip


def ibverbs(verbs: Verbs) -> dict[str, ModuleType]:
    """The package of release 2026.10."""
    rights = {"LOCAL_WRITE": 1, "REMOTE_WRITE": 2, "REMOTE_READ": 4}
    devices = [
        SimpleNamespace(name=name, open=partial(IbverbsContext, verbs, name))
        for name in verbs.ports
    ]
    made = _module(
        "ibverbs",
        AccessFlags=enum.IntFlag("AccessFlags", rights),
        QPType=enum.IntEnum("QPType", {"RC": 2}),
        VerbsError=VerbError,
        QPInfo=SimpleNamespace,
        QPInitAttr=SimpleNamespace,
        get_device_list=lambda: devices,
    )
    return {"ibverbs": made}


def _module(name: str, **inside: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(inside)
    return made
