"""What an adapter and its driver do, as C functions over this process's memory.

Work moves when its sender polls: in pieces, in order, once. A queue pair's record is int64 words;
behind them stand its sends, 8 words each, and its receives. A port's are whether it is dead, how
many regions it has, and these: key, remote key, start, length. What goes wrong the record says, one
in how many, by a generator of its own. A living network loses no piece as often as an adapter
tries: one that gives up is right to, and over millions of pieces chance alone would see to it.
"""

from __future__ import annotations

from numba import types

from dgpp.net.verbs.library import RETRIES, RNR_RETRIES
from kernels_numba.cpu.atomics import load_acquire, store_release
from kernels_numba.cpu.pointers import view_i64, view_u8
from kernels_numba.jit import entry, kernel

PIECE = 64
"""Bytes of a write that arrive at once."""
STEPS = 4
"""Pieces a poll moves at most, a queue pair."""
PAIR_WORDS = 24
(
    PEER, BROKEN, POSTED, RETIRED, RECLAIMED, TRIES, RECEIVES, CONSUMED, REPORTED, RANDOM, LOST,
    DOUBLED, EARLY, DELAYED, PORT, DEPTH,
) = range(16)  # fmt: skip
SEND_WORDS = 8
_NUMBER, _START, _LENGTH, _LKEY, _REMOTE, _RKEY, _FLAGS, _MOVED = range(8)
_SIGNALED, _TOLD = 1, 2
_WRITE_IMMEDIATE, _SIGNALED_FLAG = 1, 2
PORT_WORDS = 34
DEAD, REGIONS, FIRST_REGION = 0, 1, 2
_ENOMEM, _EINVAL = 12, 22
_FLUSHED, _LOCAL, _REMOTE_ACCESS, _RETRIES_SPENT, _NO_RECEIVE = 5, 4, 10, 12, 13
_RECEIVED_IMMEDIATE = 129
_WC_BYTES = 48


@kernel()
def one_in(pair: int, word: int) -> bool:
    """Whether it happens now."""
    p = view_i64(pair, PAIR_WORDS)
    x = p[RANDOM]
    x ^= x << 13
    x ^= (x >> 7) & 0x01FFFFFFFFFFFFFF
    x ^= x << 17
    p[RANDOM] = x
    return p[word] > 0 and ((x >> 11) & 0xFFFFFF) % p[word] == 0


@kernel()
def send_of(pair: int, number: int) -> int:
    p = view_i64(pair, PAIR_WORDS)
    return int(pair + 8 * (PAIR_WORDS + SEND_WORDS * (number % p[DEPTH])))


@kernel()
def receive_of(pair: int, number: int) -> int:
    p = view_i64(pair, PAIR_WORDS)
    return int(pair + 8 * (PAIR_WORDS + SEND_WORDS * p[DEPTH] + number % p[DEPTH]))


@kernel()
def opens(port: int, key: int, which: int, start: int, length: int) -> bool:
    """Whether `key` (0: the local one, 1: the remote one) is of a region that holds this."""
    words = view_i64(port, PORT_WORDS)
    for i in range(words[REGIONS]):
        region = view_i64(port + 8 * (FIRST_REGION + 4 * i), 4)
        if region[which] == key and region[2] <= start and start + length <= region[2] + region[3]:
            return True
    return False


@kernel()
def emit(wc: int, number: int, status: int, opcode: int) -> None:
    words = view_i64(wc, 6)
    words[0], words[1] = number, status | opcode << 32
    words[2], words[3], words[4], words[5] = 0, 0, 0, 0


@kernel()
def move(pair: int, send: int) -> int:
    """Try to move a piece of one write: 0, or the status that it fails with."""
    p, s = view_i64(pair, PAIR_WORDS), view_i64(send, SEND_WORDS)
    if not opens(p[PORT], s[_LKEY], 0, s[_START], s[_LENGTH]):
        return _LOCAL
    peer = view_i64(p[PEER], PAIR_WORDS)
    dead = load_acquire(peer[PORT]) != 0 or load_acquire(p[PEER] + 8 * BROKEN) != 0
    if dead or (one_in(pair, LOST) and p[TRIES] < RETRIES):
        p[TRIES] += 1
        return _RETRIES_SPENT if p[TRIES] > RETRIES else 0
    if not opens(peer[PORT], s[_RKEY], 1, s[_REMOTE], s[_LENGTH]):
        return _REMOTE_ACCESS
    p[TRIES] = 0
    piece = min(PIECE, s[_LENGTH] - s[_MOVED])
    for _ in range(2 if one_in(pair, DOUBLED) else 1):
        source = view_u8(s[_START] + s[_MOVED], piece)
        target = view_u8(s[_REMOTE] + s[_MOVED], piece)
        for i in range(piece):
            target[i] = source[i]
    s[_MOVED] += piece
    return 0


@kernel()
def retire(pair: int, send: int) -> int:
    """The oldest write has moved wholly: 1 when its peer was told, 0 when that has to wait, or
    minus the status that it fails with."""
    p, s = view_i64(pair, PAIR_WORDS), view_i64(send, SEND_WORDS)
    if s[_FLAGS] & _TOLD != 0:
        peer = view_i64(p[PEER], PAIR_WORDS)
        if load_acquire(p[PEER] + 8 * RECEIVES) == peer[CONSUMED]:
            p[TRIES] += 1
            return -_NO_RECEIVE if p[TRIES] > RNR_RETRIES else 0
        store_release(p[PEER] + 8 * CONSUMED, peer[CONSUMED] + 1)
    p[TRIES] = 0
    return 1


@kernel()
def step(pair: int, wc: int) -> int:
    """One step of a queue pair's oldest work; completions written to `wc`, at most one."""
    p = view_i64(pair, PAIR_WORDS)
    if p[RETIRED] == p[POSTED]:
        return 0
    send = send_of(pair, p[RETIRED])
    s = view_i64(send, SEND_WORDS)
    status = _FLUSHED if p[BROKEN] != 0 else 0
    if status == 0:
        moving = send
        if s[_MOVED] == s[_LENGTH]:
            told = retire(pair, send)
            if told == 0:
                return 0
            status = -told if told < 0 else 0
        else:
            if p[RETIRED] + 1 < p[POSTED] and one_in(pair, EARLY):
                second = send_of(pair, p[RETIRED] + 1)
                if view_i64(second, SEND_WORDS)[_MOVED] < view_i64(second, SEND_WORDS)[_LENGTH]:
                    moving = second
            status = move(pair, moving)
            if status == 0:
                return 0
    p[RETIRED] += 1
    if status != 0:
        store_release(pair + 8 * BROKEN, 1)
    if status == 0 and s[_FLAGS] & _SIGNALED == 0:
        return 0
    p[RECLAIMED] = p[RETIRED]
    emit(wc, s[_NUMBER], status, 0)
    return 1


def _post_send(pair: int, request: int, refused: int) -> int:
    p = view_i64(pair, PAIR_WORDS)
    while request != 0:
        view_i64(refused, 1)[0] = request
        if p[PEER] == 0:
            return _EINVAL
        if p[POSTED] - p[RECLAIMED] >= p[DEPTH]:
            return _ENOMEM
        words = view_i64(request, 16)
        element = view_i64(words[2], 2)
        s = view_i64(send_of(pair, p[POSTED]), SEND_WORDS)
        s[_NUMBER], s[_START] = words[0], element[0]
        s[_LENGTH], s[_LKEY] = element[1] & 0xFFFFFFFF, (element[1] >> 32) & 0xFFFFFFFF
        s[_REMOTE], s[_RKEY], s[_MOVED] = words[5], words[6] & 0xFFFFFFFF, 0
        s[_FLAGS] = 0
        if words[4] & _SIGNALED_FLAG != 0:
            s[_FLAGS] |= _SIGNALED
        if words[3] >> 32 == _WRITE_IMMEDIATE:
            s[_FLAGS] |= _TOLD
        p[POSTED] += 1
        request = words[1]
    return 0


def _post_receive(pair: int, request: int, refused: int) -> int:
    p = view_i64(pair, PAIR_WORDS)
    view_i64(refused, 1)[0] = request
    if p[RECEIVES] - p[REPORTED] >= p[DEPTH]:
        return _ENOMEM
    view_i64(receive_of(pair, p[RECEIVES]), 1)[0] = view_i64(request, 4)[0]
    store_release(pair + 8 * RECEIVES, p[RECEIVES] + 1)
    return 0


def _poll(queue: int, most: int, completions: int) -> int:
    pairs = view_i64(queue, 1)[0]
    count = 0
    for i in range(pairs):
        pair = view_i64(queue + 8 * (1 + i), 1)[0]
        p = view_i64(pair, PAIR_WORDS)
        while count < most and p[REPORTED] < load_acquire(pair + 8 * CONSUMED):
            number = view_i64(receive_of(pair, p[REPORTED]), 1)[0]
            emit(completions + _WC_BYTES * count, number, 0, _RECEIVED_IMMEDIATE)
            p[REPORTED] += 1
            count += 1
        if p[DELAYED] > 0 and not one_in(pair, DELAYED):
            continue
        for _ in range(STEPS):
            if count < most:
                count += step(pair, completions + _WC_BYTES * count)
    return count


_KIND = types.int32(*([types.int64] * 3))
post_send = entry(_post_send, _KIND)
post_receive = entry(_post_receive, _KIND)
poll = entry(_poll, _KIND)
