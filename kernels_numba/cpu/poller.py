"""The poller's inner loop: posts what an engine put into its slab, polls completions, tells it.

It calls libibverbs, or what a test puts in its place, by address: `ibv_post_send` and its like are
inline functions around pointers in a context. Records are int64 words, addresses absolute.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.atomics import add_i32, load_acquire, load_i32
from kernels_numba.cpu.bus import CELL_WORDS, SLEEPERS
from kernels_numba.cpu.calls import call_c
from kernels_numba.cpu.pointers import view_i64
from kernels_numba.cpu.requests import (
    SECOND,
    WC_WORDS,
    poll,
    post,
    post_receive,
    set_write,
    status_of,
    vendor_of,
)
from kernels_numba.jit import kernel
from kernels_numba.meeting import CELL_BYTES

LINK_WORDS = 32
(
    PAIR, POST_SEND, POST_RECEIVE, LKEY, RKEY, DEPTH, READY, RELEASED, SLOTS, STRIDE, SEND,
    SEND_CELLS, STAGED, FAR_RECEIVE, FAR_CELLS, FAR_CREDITS, LINE, FAR_LINE, PACE_PS, MOST_OUT,
    POSTED, CREDITED, WORK, SIGNALED, DONE, ARRIVED, DUE_NS, TELL, TOLD, DEAD,
) = range(30)  # fmt: skip
"""A link's words: the queue pair, its functions, keys, and how much work it takes; where the engine
counts the channel's messages; its rows here, and there; this rank's line here and there;
picoseconds a byte when paced, and the most messages that may be out, 0 for no limit. Then what the
loop keeps: messages and credits posted, work posted, the last work that reports and the last known
to be done, messages known to have arrived where they are limited, when the next one may go; whether
to write the line, the work that last did, and whether the link is used no more."""

LOOP_WORDS = 24
(
    LINKS, LINK_COUNT, QUEUES, QUEUE_COUNT, POLL, COMPLETIONS, REQUESTS, ARRIVALS, SYSCALL, FUTEX,
    CLOCK, TIME, FAILED, STATUS, VENDOR, MESSAGES, POSTS, RECEIVED, TURNS,
) = range(19)  # fmt: skip
"""The loop's words: links and completion queues (pointers) and how many; what polls; memory for
completions, requests and a timespec; the word that changes with arrivals; libc's syscall and
clock_gettime, futex's number. Then what failed: link, status, vendor's number; and what was
counted."""

POLLED = 16
DUE, IDLE, FAILURE = 0, 1, 2
"""Why the loop returned: the time is up, nothing to do for long, work failed."""
REFUSED = 1 << 16
"""A status above all of the library's: a post was refused with this errno more."""
PLACE, RECEIVE, _MESSAGE = 48, 1 << 47, 1 << 46
"""In a work's number: the link stands above, a receive has a bit and the end of a message that is
counted when it arrives another; below is the count of work."""
_COUNT = _MESSAGE - 1
_REPORTS = 4
"""Work reports at least this often in a queue's depth."""
_FUTEX_WAKE, _EVERYBODY, _MONOTONIC = 1, 2**31 - 1, 1


@kernel()
def now_ns(loop: int) -> int:
    """The monotonic clock."""
    g = view_i64(loop, LOOP_WORDS)
    call_c(g[CLOCK], _MONOTONIC, g[TIME], 0, 0, 0, 0)
    time = view_i64(g[TIME], 2)
    return int(time[0] * 1_000_000_000 + time[1])


@kernel()
def _fail(loop: int, place: int, status: int, vendor: int) -> int:
    g = view_i64(loop, LOOP_WORDS)
    g[FAILED], g[STATUS], g[VENDOR] = place, status, vendor
    return -1


@kernel()
def _write(
    loop: int, place: int, request: int, start: int, length: int, remote: int, report: int,
    told: int,
) -> None:  # fmt: skip
    """Count and set one write. What reports lets the adapter forget all work before it; where
    `report` is _MESSAGE the link's messages that arrived are counted by it."""
    g = view_i64(loop, LOOP_WORDS)
    link = view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)
    link[WORK] += 1
    signaled = int(report != 0 or link[WORK] - link[SIGNALED] >= link[DEPTH] // _REPORTS)
    if signaled != 0:
        link[SIGNALED] = link[WORK]
    set_write(
        g[REQUESTS], request, place << PLACE | (report & _MESSAGE) | (link[WORK] & _COUNT), start,
        length, link[LKEY], remote, link[RKEY], signaled, told,
    )  # fmt: skip


@kernel()
def _post(loop: int, place: int, both: int) -> int:
    g = view_i64(loop, LOOP_WORDS)
    link = view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)
    g[POSTS] += 1
    refused = post(link[POST_SEND], link[PAIR], g[REQUESTS], both)
    if refused != 0:
        return _fail(loop, place, REFUSED + refused, 0)
    return 1


@kernel()
def _post_message(loop: int, place: int, slot: int, length: int) -> int:
    """Payload and doorbell in one go; an empty message is a doorbell alone."""
    g = view_i64(loop, LOOP_WORDS)
    link = view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)
    step, cells = link[STRIDE] * slot, CELL_BYTES * slot
    report = _MESSAGE if link[MOST_OUT] > 0 else 0
    if length > 0:
        size = (length + 7) // 8 * 8
        _write(loop, place, 0, link[SEND] + step, size, link[FAR_RECEIVE] + step, 0, 0)
    _write(
        loop, place, SECOND if length > 0 else 0, link[SEND_CELLS] + cells, CELL_BYTES,
        link[FAR_CELLS] + cells, report, 1,
    )  # fmt: skip
    g[MESSAGES] += 1
    return _post(loop, place, int(length > 0))


@kernel()
def _post_messages(loop: int, place: int) -> int:
    """What the engine has filled, as far as queue, limit and pace allow; -1 where it failed."""
    g = view_i64(loop, LOOP_WORDS)
    link = view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)
    ready, worked = load_acquire(link[READY]), 0
    while link[POSTED] < ready:
        # Credits count only as work: they may report later than any message that waits here.
        full = link[MOST_OUT] > 0 and link[POSTED] - link[ARRIVED] >= link[MOST_OUT]
        if full or link[WORK] - link[DONE] + 2 > link[DEPTH]:
            break
        now = 0
        if link[PACE_PS] > 0:
            now = now_ns(loop)
            if now < link[DUE_NS]:
                # Not idle: nothing would wake the poller when its time has come.
                worked += 1
                break
        slot = link[POSTED] % link[SLOTS]
        size = view_i64(link[SEND_CELLS] + CELL_BYTES * slot, CELL_WORDS)[3] & 0xFFFFFFFF
        if _post_message(loop, place, slot, size) < 0:
            return -1
        link[POSTED] += 1
        link[DUE_NS] = now + size * link[PACE_PS] // 1000
        worked += 1
    return worked


@kernel()
def _post_credits(loop: int, place: int) -> int:
    g = view_i64(loop, LOOP_WORDS)
    link = view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)
    released, worked = load_acquire(link[RELEASED]), 0
    while link[CREDITED] < released and link[WORK] - link[DONE] < link[DEPTH]:
        cells = CELL_BYTES * (link[CREDITED] % link[SLOTS])
        _write(loop, place, 0, link[STAGED] + cells, CELL_BYTES, link[FAR_CREDITS] + cells, 0, 1)
        if _post(loop, place, 0) < 0:
            return -1
        link[CREDITED] += 1
        worked += 1
    return worked


@kernel()
def _post_line(loop: int, place: int) -> int:
    """This rank's line, where it is asked for and the last one has arrived."""
    g = view_i64(loop, LOOP_WORDS)
    link = view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)
    if link[TELL] == 0 or link[TOLD] > link[DONE] or link[WORK] - link[DONE] >= link[DEPTH]:
        return 0
    link[TELL] = 0
    _write(loop, place, 0, link[LINE], CELL_BYTES, link[FAR_LINE], 1, 0)
    link[TOLD] = link[WORK]
    return _post(loop, place, 0)


@kernel()
def _arrive(loop: int) -> None:
    """Something came: tell an engine that sleeps."""
    g = view_i64(loop, LOOP_WORDS)
    add_i32(g[ARRIVALS], np.int32(1))
    if load_i32(g[ARRIVALS] + SLEEPERS) != 0:
        call_c(g[SYSCALL], g[FUTEX], g[ARRIVALS], _FUTEX_WAKE, _EVERYBODY, 0, 0)


@kernel()
def _note(loop: int, completion: int) -> int:
    """One completion: 1 where it is of a message or credit that came, -1 where work failed."""
    g = view_i64(loop, LOOP_WORDS)
    number, status = view_i64(completion, WC_WORDS)[0], status_of(completion)
    place = number >> PLACE
    link = view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)
    if status != 0:
        if link[DEAD] != 0:
            return 0
        return _fail(loop, place, status, vendor_of(completion))
    if number & RECEIVE == 0:
        link[DONE] = number & _COUNT
        link[ARRIVED] += int(number & _MESSAGE != 0)
        return 0
    g[RECEIVED] += 1
    refused = post_receive(link[POST_RECEIVE], link[PAIR], g[REQUESTS], number)
    if refused != 0 and link[DEAD] == 0:
        return _fail(loop, place, REFUSED + refused, 0)
    return 1


@kernel()
def _poll_all(loop: int) -> int:
    """Completions that were there, -1 where work failed."""
    g = view_i64(loop, LOOP_WORDS)
    queues, worked, came = view_i64(g[QUEUES], g[QUEUE_COUNT]), 0, 0
    for lane in range(g[QUEUE_COUNT]):
        count = poll(g[POLL], queues[lane], POLLED, g[COMPLETIONS])
        if count < 0:
            return _fail(loop, -1, REFUSED - count, 0)
        worked += count
        for i in range(count):
            told = _note(loop, g[COMPLETIONS] + 8 * WC_WORDS * i)
            if told < 0:
                return -1
            came += told
    if came > 0:
        _arrive(loop)
    return worked


@kernel()
def turn(loop: int) -> int:
    """Once round: what was done, 0 for nothing, -1 where something failed."""
    g = view_i64(loop, LOOP_WORDS)
    worked = 0
    for place in range(g[LINK_COUNT]):
        if view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)[DEAD] != 0:
            continue
        messages = _post_messages(loop, place)
        given = _post_credits(loop, place) if messages >= 0 else -1
        line = _post_line(loop, place) if given >= 0 else -1
        if line < 0:
            return -1
        worked += messages + given + line
    polled = _poll_all(loop)
    g[TURNS] += 1
    return -1 if polled < 0 else worked + polled


@kernel()
def run(loop: int, until_ns: int, idle_ns: int) -> int:
    """Turns until the clock reads `until_ns`, or nothing was done for `idle_ns`."""
    worked_ns = now_ns(loop)
    while True:
        worked = turn(loop)
        if worked < 0:
            return FAILURE
        now = now_ns(loop)
        if now >= until_ns:
            return DUE
        if worked > 0:
            worked_ns = now
        elif now - worked_ns >= idle_ns:
            return IDLE


@kernel()
def open_link(loop: int, place: int) -> int:
    """Post all receives of a link: as many as its queue holds; an errno."""
    g = view_i64(loop, LOOP_WORDS)
    link = view_i64(g[LINKS] + 8 * LINK_WORDS * place, LINK_WORDS)
    for _ in range(link[DEPTH]):
        refused = post_receive(
            link[POST_RECEIVE], link[PAIR], g[REQUESTS], place << PLACE | RECEIVE
        )
        if refused != 0:
            return refused
    return 0
