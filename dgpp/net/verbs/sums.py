"""What ranks exchange over the bus, step by step: small sums in one shot, large ones in stripes.

Each is a generator that does what it can and yields what it waits for. Sums begin with rank 0's
values and add the others in rank order, each element by itself, by the functions that ranks of one
host use: the bits are theirs.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from dgpp.net.host import Bytes
from dgpp.net.rows import Sum
from dgpp.net.verbs.slots import Ends, Mark, Until
from kernels_numba.cpu import bus, exchange
from kernels_numba.cpu.memory import Block, allocate

WORD = 8
_F32 = 4

Steps = Generator[Until, None, None]


def whole_words(size: int) -> int:
    return -(-size // WORD)


class Scratch:
    """Memory for what a rank sends to all and for sums on their way, grown as needed."""

    def __init__(self, world: int) -> None:
        self._parts = np.zeros(world, np.int64)
        self.parts = int(self._parts.ctypes.data)
        self._memory: dict[str, Block] = {}

    def at(self, name: str, size: int) -> int:
        """Address of whole words for `size` bytes; the last are zero where they are not filled."""
        held = self._memory.get(name)
        if held is None or held.width < size + WORD:
            held = self._memory[name] = Block(allocate((1, size + WORD), np.uint8))
        return held.address

    def set_part(self, rank: int, address: int) -> None:
        self._parts[rank] = address


def one_shot(ends: Ends, mark: Mark, total: Sum, scratch: Scratch) -> Steps:
    """Every rank sends its rows to every other one and adds all up."""
    own = scratch.at("own", total.bytes)
    _stage(total, own)
    yield from _to_all(ends, mark, own, total.bytes)
    scratch.set_part(ends.rank, own)
    for peer in ends.peers:
        scratch.set_part(peer, (yield from ends.latency(peer).take(mark)))
    exchange.sum_rows(
        scratch.parts, ends.world, total.rows, total.width, total.wire,
        scratch.at("sums", _F32 * total.width), total.out, total.out_stride, int(total.add),
    )  # fmt: skip
    for peer in ends.peers:
        bus.give_back(ends.latency(peer).record)


def barrier(ends: Ends, mark: Mark) -> Steps:
    """An empty message to all and from all."""
    for peer in ends.peers:
        end = ends.latency(peer)
        yield from end.room()
        bus.announce(end.record, 0, 0, *mark)
    ends.poke()
    for peer in ends.peers:
        yield from ends.latency(peer).take(mark)
        bus.give_back(ends.latency(peer).record)


def gather_small(ends: Ends, mark: Mark, sent: Bytes, out: Bytes) -> Steps:
    """out [world, size] = every rank's uint8 `sent`, which fits into a latency slot."""
    source = _padded(sent)
    yield from _to_all(ends, mark, int(source.ctypes.data), sent.size)
    out[ends.rank] = sent
    for peer in ends.peers:
        end = ends.latency(peer)
        payload = yield from end.take(mark)
        out[peer] = ends.view(payload, sent.size)
        bus.give_back(end.record)


def gather_bulk(ends: Ends, mark: Mark, sent: Bytes, out: Bytes) -> Steps:
    """As gather_small, in stripes over all lanes."""
    step = ends.bulk(ends.peers[0], 0).slot_bytes
    starts = range(0, sent.size, step)
    for stripe, first in enumerate(starts):
        part = _padded(sent[first : first + step])
        size = min(step, sent.size - first)
        yield from _to_all(ends, mark, int(part.ctypes.data), size, stripe)
    out[ends.rank] = sent
    for stripe, first in enumerate(starts):
        for peer in ends.peers:
            end = ends.bulk(peer, stripe)
            payload = yield from end.take(mark)
            size = min(step, sent.size - first)
            out[peer, first : first + size] = ends.view(payload, size)
            bus.give_back(end.record)
    ends.poke()


def striped(ends: Ends, mark: Mark, total: Sum, scratch: Scratch) -> Steps:
    """Reduce-scatter, then all-gather: each rank adds up its share of the rows and sends the sums,
    in float32, to the others. Shares go in stripes, round the lanes."""
    plan = StripePlan(ends, total)
    for stripe in range(plan.most):
        for peer in ends.peers:
            if (piece := plan.piece(peer, stripe)) is None:
                continue
            end = ends.bulk(peer, stripe)
            yield from end.room()
            target = bus.next_payload(end.record)
            _stage(piece, target)
            hashed = bus.fold(target, whole_words(piece.bytes))
            bus.announce(end.record, piece.bytes, hashed, *mark)
            ends.poke()
    for stripe in range(plan.most):
        if (piece := plan.piece(ends.rank, stripe)) is not None:
            yield from _sum_stripe(ends, mark, piece, stripe, scratch)
    for stripe in range(plan.most):
        for peer in ends.peers:
            if (piece := plan.piece(peer, stripe)) is None:
                continue
            end = ends.bulk(peer, stripe)
            _put_totals((yield from end.take(mark)), piece)
            bus.give_back(end.record)
            ends.poke()


class StripePlan:
    """Which rows of a sum are whose, and how a share is cut: the same on all ranks."""

    def __init__(self, ends: Ends, total: Sum) -> None:
        self._total = total
        self._share = -(-total.rows // ends.world)
        room = rows_per_stripe(ends, total.width)
        self._step = max(1, min(room, -(-self._share // ends.lanes)))
        self.most = -(-self._share // self._step)

    def piece(self, rank: int, stripe: int) -> Sum | None:
        """Of rank `rank`'s share; None where it has no such stripe."""
        begin = rank * self._share + stripe * self._step
        end = min(begin + self._step, (rank + 1) * self._share, self._total.rows)
        return self._total.piece(begin, end - begin) if begin < end else None


def rows_per_stripe(ends: Ends, width: int) -> int:
    """Sums travel as float32 whatever the wire."""
    return ends.bulk(ends.peers[0], 0).slot_bytes // (_F32 * width)


def rows_per_segment(ends: Ends, width: int) -> int:
    """Most rows that one striped sum takes: a share's stripes then have slots of their own."""
    slots = ends.bulk(ends.peers[0], 0).slots
    return ends.world * rows_per_stripe(ends, width) * slots * ends.lanes


def bytes_per_gather(ends: Ends) -> int:
    """Most bytes of a rank that one gather takes: all stripes then have slots of their own."""
    end = ends.bulk(ends.peers[0], 0)
    return end.slot_bytes * end.slots * ends.lanes


def _sum_stripe(ends: Ends, mark: Mark, piece: Sum, stripe: int, scratch: Scratch) -> Steps:
    own = scratch.at("own", piece.bytes)
    _stage(piece, own)
    scratch.set_part(ends.rank, own)
    for peer in ends.peers:
        scratch.set_part(peer, (yield from ends.bulk(peer, stripe).take(mark)))
    count, size = piece.rows * piece.width, _F32 * piece.rows * piece.width
    sums = scratch.at("stripe", size)
    exchange.sum_parts(scratch.parts, ends.world, 0, count, piece.wire, sums)
    for peer in ends.peers:
        bus.give_back(ends.bulk(peer, stripe).record)
    _put_totals(sums, piece)
    bus.pad(sums, size)
    yield from _to_all(ends, mark, sums, size, stripe)


def _put_totals(sums: int, piece: Sum) -> None:
    exchange.put_totals(sums, piece.rows, piece.width, piece.out, piece.out_stride, int(piece.add))


def _stage(piece: Sum, target: int) -> None:
    """The rows as they travel, filled up with zeros to whole words."""
    exchange.put_rows(
        piece.partial, piece.partial_stride, piece.rows, piece.width, piece.wire, target
    )
    bus.pad(target, piece.bytes)


def _to_all(ends: Ends, mark: Mark, source: int, size: int, stripe: int | None = None) -> Steps:
    """The same message to every peer: over the latency pool, or as a stripe of a large one."""
    hashed = bus.fold(source, whole_words(size))
    for peer in ends.peers:
        end = ends.latency(peer) if stripe is None else ends.bulk(peer, stripe)
        yield from end.room()
        bus.send(end.record, source, size, hashed, *mark)
    ends.poke()


def _padded(data: Bytes) -> Bytes:
    words = np.zeros(WORD * whole_words(data.size), np.uint8)
    words[: data.size] = data
    return words
