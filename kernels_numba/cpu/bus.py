"""A rank's ends of the RoCE bus's channels: slots filled, announced, read and given back in rings.

A channel goes to one peer; its record is int64 words, addresses absolute. Message n (from 1) lies
in slot (n − 1) mod slots. It is announced by a cell of eight words: sequence, generation, fold of
the payload, length | slot << 32, tag, two zeros, and the fold of these seven. A cell whose own
fold is wrong has not wholly arrived, and a cell proves nothing of its payload: the fold in it does.
A payload is whole words, filled up with zeros; `length` tells its bytes.

Nothing here waits but `spin`.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.atomics import (
    add_i32,
    full_fence,
    load_acquire,
    load_i32,
    pause,
    store_release,
)
from kernels_numba.cpu.pointers import view_i32, view_i64, view_u8
from kernels_numba.jit import kernel
from kernels_numba.meeting import CELL_BYTES

CELL_WORDS = CELL_BYTES // 8
CHANNEL_WORDS = 16
(
    SEND, SEND_CELLS, CREDITS, RECEIVE, RECEIVE_CELLS, STAGED, STRIDE, SLOTS, SLOT_BYTES,
    READY, RELEASED, SEQUENCE, CREDITED, TAKEN, GIVEN,
) = range(15)  # fmt: skip
"""A channel's words: the first payload to send, its cells, credits that came back, the first
payload received, its cells, credits on their way; bytes from one payload to the next, slots,
payload bytes of one; where the last message that may be posted and the last one given back are told
to the poller; and the last message filled, credited, taken and given back."""
BROKEN, OTHER = -1, -2
"""What a look at a channel finds: a cell that is not the one due; another collective's message."""
SLEEPERS = 4
"""Behind the word that changes with all that comes: how many sleep on it."""
FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""Signed, as words are here: arithmetic is modulo 2**64 either way."""


@kernel()
def fold(address: int, words: int) -> int:
    """64-bit hash of whole words: XOR of (word + position + 1) * FACTOR. With the position, for
    equal words cancel under XOR alone; the factor is odd: a single word that differs shows."""
    values = view_i64(address, words)
    told = np.int64(0)
    for i in range(words):
        told ^= (values[i] + np.int64(i + 1)) * np.int64(FACTOR)
    return int(told)


@kernel(inline=True)
def is_sealed(cell: int) -> bool:
    return bool(fold(cell, CELL_WORDS - 1) == view_i64(cell, CELL_WORDS)[CELL_WORDS - 1])


@kernel()
def write_cell(cell: int, sequence: int, generation: int, hashed: int, size: int, tag: int) -> None:
    """`size` is length | slot << 32."""
    words = view_i64(cell, CELL_WORDS)
    words[0], words[1], words[2], words[3], words[4] = sequence, generation, hashed, size, tag
    words[5], words[6] = 0, 0
    words[7] = fold(cell, CELL_WORDS - 1)


@kernel(inline=True)
def copy_words(source: int, target: int, words: int) -> None:
    values, out = view_i64(source, words), view_i64(target, words)
    for i in range(words):
        out[i] = values[i]


@kernel()
def copy_cell(cell: int, target: int) -> None:
    """Eight words, wherever they are."""
    copy_words(cell, target, CELL_WORDS)


@kernel()
def pad(payload: int, length: int) -> None:
    """Zeros behind a payload of `length` bytes, up to whole words."""
    rest = length % 8
    if rest != 0:
        end = view_u8(payload + length, 8 - rest)
        for i in range(8 - rest):
            end[i] = 0


@kernel()
def room(channel: int) -> int:
    """Slots that are free after a look at the credits, or BROKEN."""
    c = view_i64(channel, CHANNEL_WORDS)
    while c[CREDITED] < c[SEQUENCE]:
        due, slot = c[CREDITED] + 1, c[CREDITED] % c[SLOTS]
        credit, sent = c[CREDITS] + CELL_BYTES * slot, c[SEND_CELLS] + CELL_BYTES * slot
        told = load_acquire(credit)
        if not is_sealed(credit) or told == due - c[SLOTS]:
            break
        mine, theirs = view_i64(sent, CELL_WORDS), view_i64(credit, CELL_WORDS)
        for i in range(CELL_WORDS):
            if mine[i] != theirs[i]:
                return BROKEN
        c[CREDITED] = due
    return int(c[SLOTS] - (c[SEQUENCE] - c[CREDITED]))


@kernel()
def next_payload(channel: int) -> int:
    """Where the next message is to be written; there must be `room`."""
    c = view_i64(channel, CHANNEL_WORDS)
    return int(c[SEND] + c[SEQUENCE] % c[SLOTS] * c[STRIDE])


@kernel()
def announce(channel: int, length: int, hashed: int, generation: int, tag: int) -> None:
    """The next payload, `length` bytes whose fold is `hashed`, is written and may be posted."""
    c = view_i64(channel, CHANNEL_WORDS)
    slot = c[SEQUENCE] % c[SLOTS]
    c[SEQUENCE] += 1
    write_cell(
        c[SEND_CELLS] + CELL_BYTES * slot, c[SEQUENCE], generation, hashed, length | slot << 32, tag
    )
    store_release(c[READY], c[SEQUENCE])


@kernel()
def send(channel: int, source: int, length: int, hashed: int, generation: int, tag: int) -> None:
    """Fill the next slot, of which there must be one, from whole words at `source`; announce it."""
    copy_words(source, next_payload(channel), (length + 7) // 8)
    announce(channel, length, hashed, generation, tag)


@kernel()
def due_cell(channel: int) -> int:
    """Where the next message will be announced; its first word becomes TAKEN + 1."""
    c = view_i64(channel, CHANNEL_WORDS)
    return int(c[RECEIVE_CELLS] + CELL_BYTES * (c[TAKEN] % c[SLOTS]))


@kernel()
def due_credit(channel: int) -> int:
    """Where the next credit will come; its first word becomes CREDITED + 1."""
    c = view_i64(channel, CHANNEL_WORDS)
    return int(c[CREDITS] + CELL_BYTES * (c[CREDITED] % c[SLOTS]))


@kernel()
def announced(channel: int) -> int:
    """The cell of the next message: its address, 0 before it has come, or BROKEN."""
    c = view_i64(channel, CHANNEL_WORDS)
    due, slot, cell = c[TAKEN] + 1, c[TAKEN] % c[SLOTS], due_cell(channel)
    told = load_acquire(cell)
    if not is_sealed(cell) or told == due - c[SLOTS]:
        return 0
    size = view_i64(cell, CELL_WORDS)[3]
    if told != due or size >> 32 != slot or size & 0xFFFFFFFF > c[SLOT_BYTES]:
        return BROKEN
    return cell


@kernel()
def take(channel: int, generation: int, tag: int) -> int:
    """The next message's payload: its address once all of it has come, and from then on the one
    after it is the next; 0 before, or BROKEN, or OTHER where it is of another collective."""
    cell = announced(channel)
    if cell <= 0:
        return int(cell)
    words = view_i64(cell, CELL_WORDS)
    if words[1] != generation or words[4] != tag:
        return OTHER
    c = view_i64(channel, CHANNEL_WORDS)
    payload = c[RECEIVE] + c[TAKEN] % c[SLOTS] * c[STRIDE]
    if fold(payload, ((words[3] & 0xFFFFFFFF) + 7) // 8) != words[2]:
        return 0
    c[TAKEN] += 1
    return int(payload)


@kernel()
def give_back(channel: int) -> None:
    """The oldest taken message has been read: stage its credit."""
    c = view_i64(channel, CHANNEL_WORDS)
    slot = c[GIVEN] % c[SLOTS]
    copy_cell(c[RECEIVE_CELLS] + CELL_BYTES * slot, c[STAGED] + CELL_BYTES * slot)
    c[GIVEN] += 1
    store_release(c[RELEASED], c[GIVEN])


@kernel()
def spin(address: int, value: int, spins: int) -> bool:
    """Whether the word became `value` within `spins` looks."""
    for _ in range(spins):
        if load_acquire(address) == value:
            return True
        pause()
    return False


@kernel()
def set_word(address: int, value: int) -> None:
    """Store a 32-bit word, in one order with all that this thread loads afterwards."""
    view_i32(address, 1)[0] = np.int32(value)
    full_fence()


@kernel()
def is_set(address: int) -> bool:
    """Whether the 32-bit word is not 0, in one order with all that this thread stored before."""
    full_fence()
    return bool(load_i32(address) != 0)


@kernel()
def lie_down(arrivals: int) -> int:
    """Count the caller among those who sleep on the 32-bit word; what it was after that."""
    add_i32(arrivals + SLEEPERS, np.int32(1))
    full_fence()
    return int(load_i32(arrivals))


@kernel()
def get_up(arrivals: int) -> None:
    add_i32(arrivals + SLEEPERS, np.int32(-1))


@kernel()
def arrive(arrivals: int) -> int:
    """Something came: change the word; how many sleep on it."""
    add_i32(arrivals, np.int32(1))
    return int(load_i32(arrivals + SLEEPERS))
