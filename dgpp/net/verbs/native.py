"""Where libibverbs' structures are behind a package's objects, which do not say so.

An ibv_qp is found in its object's memory by what it must hold: the queue pair's number, and an
ibv_context with one of the device's open files. Offsets are those of <infiniband/verbs.h>, part of
its ABI.
"""

from __future__ import annotations

import enum
import os
import struct
import sys
from typing import Any, NamedTuple

from dgpp.net.verbs.errors import LibraryError
from dgpp.net.verbs.library import Calls

_PAIR = struct.Struct("<QQQQQQII")
"""ibv_qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num."""
_POLL, _POST_SEND, _POST_RECEIVE = 96, 208, 216
"""In an ibv_context: `ops`, 32 functions, begins at 8; poll_cq is the 12th, post_send the 26th,
post_recv follows."""
_CONTEXT_BYTES = 272


class Where(enum.IntEnum):
    """Where an ibv_context keeps an open file: behind its functions that for commands, `cmd_fd`,
    then that for events, `async_fd`."""

    COMMANDS = 264
    EVENTS = 268


class File(NamedTuple):
    """An open file of a device, as the package tells it."""

    where: Where
    fd: int


def calls_of(pair: Any, file: File, known: str) -> Calls:
    """Of the queue pair object `pair`, whose device has the open `file`. Raises LibraryError saying
    which releases are `known`."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        found = _calls_of(memory, pair, file)
    finally:
        os.close(memory)
    if found is None:
        raise LibraryError(
            f"roce bus: queue pair {pair.qp_num} is not where its package keeps it: this release "
            f"is not known; {known} is"
        )
    return found


def _calls_of(memory: int, pair: Any, file: File) -> Calls | None:
    held = _read(memory, id(pair), sys.getsizeof(pair) // 8 * 8)
    for (address,) in struct.iter_unpack("<Q", held):
        told = _read(memory, address, _PAIR.size)
        if len(told) != _PAIR.size:
            continue
        owner, _own, _domain, queue, receives, _shared, _handle, number = _PAIR.unpack(told)
        if number != pair.qp_num or queue != receives:
            continue
        context = _read(memory, owner, _CONTEXT_BYTES)
        if context[file.where : file.where + 4] == file.fd.to_bytes(4, "little"):
            functions = (
                int.from_bytes(context[at : at + 8], "little")
                for at in (_POST_SEND, _POST_RECEIVE, _POLL)
            )
            return Calls(address, queue, *functions)
    return None


def _read(memory: int, address: int, size: int) -> bytes:
    """What lies there, b"" where nothing is mapped: not every word is an address."""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""
