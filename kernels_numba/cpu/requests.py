"""Work requests and completions of <infiniband/verbs.h>, whose layout is part of its ABI.

As int64 words: ibv_send_wr has 16 (number, next, elements, count | opcode << 32, flags | immediate
<< 32, remote address, key), ibv_sge 2 (address, length | key << 32), ibv_recv_wr 4 (number, next,
elements, count), ibv_wc 6 (number, status | opcode << 32, vendor's number | length << 32, …).
"""

from __future__ import annotations

from kernels_numba.cpu.calls import call_c
from kernels_numba.cpu.pointers import view_i64
from kernels_numba.jit import kernel

REQUEST_WORDS = 42
"""Room for two writes with an element each, a receive, and where a refused request is named."""
SECOND, _ELEMENT, _RECEIVE, _REFUSED = 16, 32, 36, 40
WC_WORDS = 6
_WRITE, _WRITE_IMMEDIATE, _SIGNALED = 0, 1, 2
_LOW = 0xFFFFFFFF


@kernel()
def set_write(
    requests: int, place: int, number: int, start: int, length: int, lkey: int, remote: int,
    rkey: int, signaled: int, told: int,
) -> None:  # fmt: skip
    """The write at word `place` (0 or SECOND) of `requests`: `length` bytes from `start` to
    `remote`; where `told`, the peer's queue reports it."""
    element = view_i64(requests + 8 * (_ELEMENT + place // 8), 2)
    element[0], element[1] = start, length | lkey << 32
    request = view_i64(requests + 8 * place, 7)
    request[0], request[1] = number, 0
    request[2] = requests + 8 * (_ELEMENT + place // 8)
    request[3] = 1 | (_WRITE_IMMEDIATE if told != 0 else _WRITE) << 32
    request[4] = _SIGNALED if signaled != 0 else 0
    request[5], request[6] = remote, rkey


@kernel()
def post(function: int, pair: int, requests: int, both: int) -> int:
    """Post the first write, `both` with the second behind it; an errno, 0 where it was taken."""
    view_i64(requests, 2)[1] = requests + 8 * SECOND if both != 0 else 0
    return int(call_c(function, pair, requests, requests + 8 * _REFUSED, 0, 0, 0))


@kernel()
def post_receive(function: int, pair: int, requests: int, number: int) -> int:
    """Room for one write that is told, which brings its own place; an errno."""
    request = view_i64(requests + 8 * _RECEIVE, 4)
    request[0], request[1], request[2], request[3] = number, 0, 0, 0
    return int(call_c(function, pair, requests + 8 * _RECEIVE, requests + 8 * _REFUSED, 0, 0, 0))


@kernel()
def poll(function: int, queue: int, most: int, completions: int) -> int:
    """How many completions were written to `completions`, below 0 where the queue is broken."""
    return int(call_c(function, queue, most, completions, 0, 0, 0))


@kernel(inline=True)
def status_of(completion: int) -> int:
    return int(view_i64(completion, WC_WORDS)[1] & _LOW)


@kernel(inline=True)
def vendor_of(completion: int) -> int:
    return int(view_i64(completion, WC_WORDS)[2] & _LOW)
