"""What ranks exchange over the bus, step by step: small sums in one shot, large ones in stripes.

Stripes go round the lanes. Two ranks swap all their rows and both add all up; more than two share
them, which is fewer bytes but one more round.

Each is a generator that does what it can and yields what it waits for. Sums begin with rank 0's
values and add the others in rank order, each element by itself, by the functions that ranks of one
host use: the bits are theirs.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from dgpp.net.host import Bytes
from dgpp.net.rows import Sum
from dgpp.net.verbs.slots import End, Ends, Mark, Until
from kernels_numba.cpu import bus, exchange
from kernels_numba.cpu.memory import Block, allocate

WORD = 8
_F32 = 4
_PAIR = 2
"""Ranks."""

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
    _put_sums(ends.world, total, scratch)
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
    step = _slot_bytes(ends)
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


def in_stripes(ends: Ends, mark: Mark, total: Sum, scratch: Scratch) -> Steps:
    """A sum of at most `rows_per_segment` rows."""
    return (swapped if ends.world == _PAIR else shared)(ends, mark, total, scratch)


def swapped(ends: Ends, mark: Mark, total: Sum, scratch: Scratch) -> Steps:
    """Each of two ranks sends all its rows to the other, and both add up all."""
    (peer,) = ends.peers
    (pieces,) = _cut(ends, total)
    own = []
    for stripe, piece in enumerate(pieces):
        own.append((yield from _fill(ends.bulk(peer, stripe), mark, piece)))
        ends.poke()
    for stripe, piece in enumerate(pieces):
        end = ends.bulk(peer, stripe)
        # What was sent stands in its slot: none is filled again before the next sum.
        scratch.set_part(ends.rank, own[stripe])
        scratch.set_part(peer, (yield from end.take(mark)))
        _put_sums(ends.world, piece, scratch)
        bus.give_back(end.record)
    ends.poke()


def shared(ends: Ends, mark: Mark, total: Sum, scratch: Scratch) -> Steps:
    """Reduce-scatter, then all-gather: each rank adds up its share of the rows and sends the sums,
    in float32, to the others."""
    shares = _cut(ends, total)
    # The last shares may be shorter.
    stripes = range(len(shares[0]))
    for stripe in stripes:
        for peer in ends.peers:
            for piece in shares[peer][stripe : stripe + 1]:
                yield from _fill(ends.bulk(peer, stripe), mark, piece)
                ends.poke()
    for stripe, piece in enumerate(shares[ends.rank]):
        yield from _sum_stripe(ends, mark, piece, stripe, scratch)
    for stripe in stripes:
        for peer in ends.peers:
            for piece in shares[peer][stripe : stripe + 1]:
                end = ends.bulk(peer, stripe)
                _put_totals((yield from end.take(mark)), piece)
                bus.give_back(end.record)
                ends.poke()


def _shares(world: int) -> int:
    """In how many a large sum goes."""
    return 1 if world == _PAIR else world


def bytes_of_value(world: int, wire: int) -> int:
    """On its way in a large sum, at most."""
    return wire if world == _PAIR else _F32


def _cut(ends: Ends, total: Sum) -> list[list[Sum]]:
    """The stripes of every share: the same on all ranks."""
    shares, size = _shares(ends.world), bytes_of_value(ends.world, total.wire)
    share = -(-total.rows // shares)
    step = max(1, min(_slot_bytes(ends) // (size * total.width), -(-share // ends.lanes)))
    cut = []
    for begin in range(0, shares * share, share):
        end = min(begin + share, total.rows)
        cut.append([total.piece(at, min(step, end - at)) for at in range(begin, end, step)])
    return cut


def rows_per_segment(ends: Ends, width: int, wire: int) -> int:
    """Most rows of `width` values that one sum in stripes takes: these then have slots of their
    own. 0 where a row does not fit into a slot."""
    shares, size = _shares(ends.world), bytes_of_value(ends.world, wire)
    slots = ends.bulk(ends.peers[0], 0).slots
    return shares * (_slot_bytes(ends) // (size * width)) * slots * ends.lanes


def _slot_bytes(ends: Ends) -> int:
    return ends.bulk(ends.peers[0], 0).slot_bytes


def bytes_per_gather(ends: Ends) -> int:
    """Most bytes of a rank that one gather takes: all stripes then have slots of their own."""
    end = ends.bulk(ends.peers[0], 0)
    return end.slot_bytes * end.slots * ends.lanes


def _sum_stripe(ends: Ends, mark: Mark, piece: Sum, stripe: int, scratch: Scratch) -> Steps:
    own = piece.partial
    if piece.wire != _F32 or piece.partial_stride != _F32 * piece.width:
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


def _put_sums(world: int, piece: Sum, scratch: Scratch) -> None:
    """Of all parts that `scratch` was told."""
    exchange.sum_rows(
        scratch.parts, world, piece.rows, piece.width, piece.wire,
        scratch.at("sums", _F32 * piece.width), piece.out, piece.out_stride, int(piece.add),
    )  # fmt: skip


def _put_totals(sums: int, piece: Sum) -> None:
    exchange.put_totals(sums, piece.rows, piece.width, piece.out, piece.out_stride, int(piece.add))


def _stage(piece: Sum, target: int) -> None:
    """The rows as they travel, filled up with zeros to whole words."""
    exchange.put_rows(
        piece.partial, piece.partial_stride, piece.rows, piece.width, piece.wire, target
    )
    bus.pad(target, piece.bytes)


def _fill(end: End, mark: Mark, piece: Sum) -> Generator[Until, None, int]:
    """The rows into the next slot, whose address it returns."""
    yield from end.room()
    target = int(bus.next_payload(end.record))
    _stage(piece, target)
    bus.announce(end.record, piece.bytes, bus.fold(target, whole_words(piece.bytes)), *mark)
    return target


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
