"""Where libibverbs' structures are behind pyverbs' objects, which do not say so.

An ibv_qp is found in its object's memory by what it must hold: the queue pair's number, and an
ibv_context with the device's open file. Offsets are those of <infiniband/verbs.h>, part of its ABI.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import Any

from dgpp.net.verbs.errors import LibraryError
from dgpp.net.verbs.library import Calls

_PAIR = struct.Struct("<QQQQQQII")
"""ibv_qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num."""
_CONTEXT_BYTES = 268
_POLL, _POST_SEND, _POST_RECEIVE, _COMMANDS = 96, 208, 216, 264
"""In an ibv_context: `ops`, 32 functions, begins at 8; poll_cq is the 12th, post_send the 26th,
post_recv follows; then comes the open file that commands go to."""


def calls_of(pair: Any, commands: int, number: int) -> Calls:
    """Of the pyverbs QP `pair`, whose device's open file is `commands`. Raises LibraryError."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        return _calls_of(memory, pair, commands, number)
    finally:
        os.close(memory)


def _calls_of(memory: int, pair: Any, commands: int, number: int) -> Calls:
    held = _read(memory, id(pair), sys.getsizeof(pair) // 8 * 8)
    for (address,) in struct.iter_unpack("<Q", held):
        told = _read(memory, address, _PAIR.size)
        if len(told) != _PAIR.size:
            continue
        owner, _own, _domain, queue, receives, _shared, _handle, told_number = _PAIR.unpack(told)
        if told_number != number or queue != receives:
            continue
        context = _read(memory, owner, _CONTEXT_BYTES)
        if context[_COMMANDS:] == commands.to_bytes(4, "little"):
            functions = (
                int.from_bytes(context[at : at + 8], "little")
                for at in (_POST_SEND, _POST_RECEIVE, _POLL)
            )
            return Calls(address, queue, *functions)
    raise LibraryError(
        f"roce bus: queue pair {number} is not where pyverbs keeps it: this release of pyverbs is "
        "not known; releases 44 to 59 of rdma-core are"
    )


def _read(memory: int, address: int, size: int) -> bytes:
    """What lies there, b"" where nothing is mapped: not every word is an address."""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""
