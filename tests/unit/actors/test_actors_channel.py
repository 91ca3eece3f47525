"""Channels, slots and the dispatcher, in one process on a plain loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from actors.channel import Arrays, Receiver, Sender
from actors.dispatch import Dispatcher
from actors.errors import (
    ArraysError,
    ChannelError,
    MessageTooLargeError,
    MessageTypeError,
    PeerGoneError,
    RingCorruptError,
)
from actors.inline import local_channel
from actors.topology import MAX_MESSAGE_BYTES, ChannelSpec


class Item(msgspec.Struct, frozen=True, tag=True):
    number: int
    payload: bytes = b""


class Other(msgspec.Struct, frozen=True, tag=True):
    text: str


class Stranger(msgspec.Struct, frozen=True, tag=True):
    text: str


def spec(source: str = "a", target: str = "b", **more: Any) -> ChannelSpec:
    more.setdefault("ring_bytes", 256)
    return ChannelSpec(source=source, target=target, messages=Item | Other, **more)


def nothing() -> None:
    pass


def pair(**more: Any) -> tuple[Sender, Receiver]:
    return local_channel(spec(**more), nothing, nothing)


def take(receiver: Receiver) -> tuple[Any, Arrays]:
    taken = receiver.take()
    assert taken is not None
    return taken


dtypes = st.sampled_from([np.dtype(k) for k in "?bBhHiIqQefdFD"])


@given(
    st.lists(
        dtypes.flatmap(
            lambda d: arrays_of.arrays(
                d, arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
            )
        ),
        min_size=1,
        max_size=4,
    )
)
def test_arrays_arrive_as_they_left(sent: list[np.ndarray]) -> None:
    sender, receiver = pair(slot_bytes=1 << 15, slots=1)
    sender.post(Item(1), [array.T for array in sent])
    message, got = take(receiver)
    assert message == Item(1)
    assert len(got) == len(sent)
    for array, original in zip(got, sent, strict=True):
        assert array.dtype == original.dtype
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, original.T)
    del array
    got.release()
    assert sender.statistics().free_slots == 1


def test_slots_are_credit() -> None:
    sender, receiver = pair(slot_bytes=256, slots=2)
    data = np.arange(4)
    for number in range(4):
        sender.post(Item(number), [data + number])
    assert sender.congested
    assert sender.statistics().pending == 2
    data[:] = -1  # what waits was copied
    for number in range(4):
        message, got = take(receiver)
        assert message.number == number
        assert got[0].tolist() == [number, number + 1, number + 2, number + 3]
        got.release()
        got.release()
        sender.flush()
    assert not sender.congested
    assert sender.statistics().free_slots == 2


def test_plain_messages_keep_their_place_behind_arrays() -> None:
    sender, receiver = pair(slot_bytes=256, slots=1)
    sender.post(Item(0), [np.zeros(1)])
    sender.post(Item(1), [np.zeros(1)])
    sender.post(Item(2))
    _, held = take(receiver)
    assert receiver.take() is None
    held.release()
    sender.flush()
    assert [take(receiver)[0].number for _ in range(2)] == [1, 2]


def test_what_can_not_be_sent_is_named() -> None:
    sender, _ = pair(slot_bytes=256, slots=1)
    with pytest.raises(ArraysError, match=r"a>b: arrays of 400 bytes need 576 .* is 256"):
        sender.post(Item(0), [np.zeros(50)])
    with pytest.raises(ArraysError, match="dtype object"):
        sender.post(Item(0), [np.array([None])])
    with pytest.raises(ArraysError, match="dtype >f4"):
        sender.post(Item(0), [np.zeros(1, ">f4")])
    with pytest.raises(MessageTypeError, match="Stranger is none"):
        sender.post(Stranger(""))
    with pytest.raises(MessageTooLargeError, match="exceeds the maximum"):
        sender.post(Item(0, bytes(MAX_MESSAGE_BYTES + 1)))
    with pytest.raises(ArraysError, match="has no slots"):
        pair()[0].post(Item(0), [np.zeros(1)])
    assert not sender.congested


def test_nonsense_in_a_frame_or_slot_is_named() -> None:
    sender, receiver = pair()
    sender._ring.try_send(b"\0\0\0\0\xc1")
    with pytest.raises(RingCorruptError, match="a>b"):
        receiver.take()
    sender._ring.try_send((8).to_bytes(4, "little") + msgspec.msgpack.encode(Item(1)))
    with pytest.raises(RingCorruptError, match="has no slots"):
        receiver.take()
    sender, receiver = pair(slot_bytes=256, slots=2)
    body = msgspec.msgpack.encode(Item(1))
    sender._ring.try_send((9).to_bytes(4, "little") + body)
    with pytest.raises(RingCorruptError, match="slot 8 of 2"):
        receiver.take()
    for header in ([["O", [1], 64]], [["<f4", [1 << 40], 64]], [["<f4", [1], -8]], [["?!", [], 0]]):
        encoded = msgspec.msgpack.encode(header)
        sender._slots._data[: 4 + len(encoded)] = len(encoded).to_bytes(4, "little") + encoded
        sender._ring.try_send((1).to_bytes(4, "little") + body)
        with pytest.raises(RingCorruptError, match="slot 0 holds no arrays"):
            receiver.take()


def test_message_larger_than_the_ring() -> None:
    sender, receiver = pair()
    big = Item(1, bytes(range(256)) * 40)
    sender.post(big)
    sender.post(Item(2))
    got = []
    while len(got) < 2:
        if (taken := receiver.take()) is not None:
            got.append(taken[0])
        sender.flush()
    assert got == [big, Item(2)]


def test_gone_peer() -> None:
    sender, _ = pair()
    sender.peer_gone("b of rank 0 was killed by signal 9")
    with pytest.raises(PeerGoneError, match="b of rank 0 was killed"):
        sender.post(Item(1))


Deliver = Callable[[str, Any, Arrays], Awaitable[None] | None]


class Desk:
    """One actor's dispatcher between named channels on a running loop."""

    def __init__(self, deliver: Deliver, inbound: list[ChannelSpec], outbound: list[ChannelSpec]):
        self.failures: list[BaseException] = []
        self.sources: dict[str, Sender] = {}
        self.targets: dict[str, Receiver] = {}
        receivers, self.senders = [], {}
        for each in inbound:
            self.sources[each.source], receiver = local_channel(each, self.flush, self.wake)
            receivers.append(receiver)
        for each in outbound:
            self.senders[each.target], self.targets[each.target] = local_channel(
                each, self.wake, nothing
            )
        self.dispatcher = Dispatcher(
            loop=asyncio.get_running_loop(),
            deliver=deliver,
            receivers=receivers,
            senders=list(self.senders.values()),
            on_failure=self.failures.append,
        )

    def wake(self) -> None:
        self.dispatcher.schedule()

    def flush(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: [s.flush() for s in self.sources.values()])


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_busy_channel_does_not_starve_another() -> None:
    async def play() -> None:
        seen: list[str] = []
        desk = Desk(
            lambda channel, m, a: seen.append(channel),
            [spec("busy", ring_bytes=1 << 16), spec("calm")],
            [],
        )
        for number in range(500):
            desk.sources["busy"].post(Item(number))
        desk.sources["calm"].post(Item(0))
        desk.dispatcher.open()
        await settle()
        assert seen.index("calm>b") <= 16
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(seen) == 501

    asyncio.run(play())


def test_sockets_get_their_turn_during_a_backlog() -> None:
    async def play() -> None:
        count = 0

        def deliver(channel: str, m: Any, a: Arrays) -> None:
            nonlocal count
            count += 1

        desk = Desk(deliver, [spec(ring_bytes=1 << 16)], [])
        for number in range(1000):
            desk.sources["a"].post(Item(number))
        desk.dispatcher.open()
        await asyncio.sleep(0)
        assert 0 < count < 100

    asyncio.run(play())


def test_congested_actor_takes_no_input_but_drains_what_it_must() -> None:
    async def play() -> None:
        seen: list[tuple[str, int]] = []

        def deliver(channel: str, message: Item, arrays: Arrays) -> None:
            seen.append((channel, message.number))
            if channel == "a>b":
                desk.senders["out"].post(Item(message.number, bytes(100)))

        desk = Desk(
            deliver,
            [spec("a", ring_bytes=4096), spec("must", always_drain=True)],
            [spec("b", "out", ring_bytes=320)],
        )
        desk.dispatcher.open()
        for number in range(10):
            desk.sources["a"].post(Item(number))
        await settle()
        taken = sum(channel == "a>b" for channel, _ in seen)
        assert taken == 3  # two fit into the ring, one waits, then no more input
        assert desk.senders["out"].statistics().pending == 1
        for number in range(50):
            desk.sources["must"].post(Item(number))
        await settle()
        assert [n for channel, n in seen if channel == "must>b"] == list(range(50))
        assert sum(channel == "a>b" for channel, _ in seen) == 3
        got: list[int] = []
        while len(got) < 10:
            if (each := desk.targets["out"].take()) is not None:
                got.append(each[0].number)
            await settle()
            assert desk.senders["out"].statistics().pending <= 1
        assert got == list(range(10))

    asyncio.run(play())


def test_async_handler_blocks_the_others_in_order() -> None:
    async def play() -> None:
        log: list[str] = []
        gate = asyncio.Event()

        async def slow(number: int) -> None:
            log.append(f"begin {number}")
            await gate.wait()
            log.append(f"end {number}")

        def deliver(channel: str, message: Item, arrays: Arrays) -> Awaitable[None] | None:
            if channel == "must>b":
                log.append(f"must {message.number}")
                return None
            return slow(message.number)

        desk = Desk(deliver, [spec("a"), spec("c"), spec("must", always_drain=True)], [])
        desk.dispatcher.open()
        desk.sources["a"].post(Item(1))
        desk.sources["a"].post(Item(2))
        desk.sources["c"].post(Item(3))
        await settle()
        desk.sources["must"].post(Item(4))
        await settle()
        assert log == ["begin 1", "must 4"]
        gate.set()
        await settle()
        # c was not served yet, so it comes before a's second.
        assert log[2:] == ["end 1", "begin 3", "end 3", "begin 2", "end 2"]

    asyncio.run(play())


def test_arrays_live_until_the_handler_is_done() -> None:
    async def play() -> None:
        gate = asyncio.Event()
        sums: list[float] = []
        kept: list[Arrays] = []

        async def slow(arrays: Arrays) -> None:
            await gate.wait()
            sums.append(float(arrays[0].sum()))

        def deliver(channel: str, message: Item, arrays: Arrays) -> Awaitable[None] | None:
            if message.number == 0:
                return slow(arrays)
            if message.number == 1:
                arrays.retain()
                kept.append(arrays)
            return None

        desk = Desk(deliver, [spec(slot_bytes=256, slots=2)], [])
        sender = desk.sources["a"]
        desk.dispatcher.open()
        sender.post(Item(0), [np.ones(3)])
        await settle()
        assert sender.statistics().free_slots == 1
        gate.set()
        await settle()
        assert sums == [3.0]
        assert sender.statistics().free_slots == 2
        sender.post(Item(1), [np.ones(5)])
        await settle()
        assert sender.statistics().free_slots == 1
        assert kept[0][0].sum() == 5
        kept[0].release()
        assert sender.statistics().free_slots == 2

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["plain", "async", "drained"])
def test_failure_ends_delivery(kind: str) -> None:
    async def broken() -> None:
        raise ValueError("broken")

    def deliver(channel: str, message: Any, arrays: Arrays) -> Awaitable[None] | None:
        if kind == "plain":
            raise ValueError("broken")
        return broken()

    async def play() -> None:
        desk = Desk(deliver, [spec(always_drain=kind == "drained")], [])
        desk.sources["a"].post(Item(1))
        desk.sources["a"].post(Item(2))
        desk.dispatcher.open()
        await settle()
        (failure,) = desk.failures
        if kind == "drained":
            assert isinstance(failure, ChannelError)
            assert "always drained" in str(failure)
        else:
            assert str(failure) == "broken"

    asyncio.run(play())
