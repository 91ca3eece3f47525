"""An adapter that costs next to nothing: what is posted reports as arrived, and each doorbell as if
the peer had sent one back. What is left is the poller's own cost."""

from __future__ import annotations

from numba import types

from kernels_numba.cpu.pointers import view_i64
from kernels_numba.jit import entry

WORDS = 8
_REPORTS, _NUMBERS, _TOLD, _RECEIVE = 0, 1, 5, 6
_MOST = 4


def _post_send(pair: int, request: int, refused: int) -> int:
    p = view_i64(pair, WORDS)
    while request != 0:
        words = view_i64(request, 16)
        if words[4] != 0 and p[_REPORTS] < _MOST:
            view_i64(pair + 8 * (_NUMBERS + p[_REPORTS]), 1)[0] = words[0]
            p[_REPORTS] += 1
        p[_TOLD] += words[3] >> 32
        request = words[1]
    return 0


def _post_receive(pair: int, request: int, refused: int) -> int:
    view_i64(pair, WORDS)[_RECEIVE] = view_i64(request, 4)[0]
    return 0


def _poll(queue: int, most: int, completions: int) -> int:
    count = 0
    for i in range(view_i64(queue, 1)[0]):
        pair = view_i64(queue + 8 * (1 + i), 1)[0]
        p = view_i64(pair, WORDS)
        while p[_REPORTS] > 0 and count < most:
            p[_REPORTS] -= 1
            wc = view_i64(completions + 48 * count, 6)
            wc[0], wc[1], wc[2] = view_i64(pair + 8 * (_NUMBERS + p[_REPORTS]), 1)[0], 0, 0
            count += 1
        while p[_TOLD] > 0 and count < most:
            p[_TOLD] -= 1
            wc = view_i64(completions + 48 * count, 6)
            wc[0], wc[1], wc[2] = p[_RECEIVE], 129 << 32, 0
            count += 1
    return count


_KIND = types.int32(*([types.int64] * 3))
post_send = entry(_post_send, _KIND)
post_receive = entry(_post_receive, _KIND)
poll = entry(_poll, _KIND)
