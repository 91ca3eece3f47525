"""The shared ring: every frame arrives once, whole and in order, whatever the sizes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import fence
from actors.errors import MessageTooLargeError, PeerGoneError, RingCorruptError
from actors.memory import create_memfd, local_memory, map_memfd
from actors.ring import RingReader, RingWriter, format_ring, ring_memory_bytes

HEAD, TAIL = 0, 8  # word indices: bytes 0 and 64


class Pair:
    """Both ends over one memory, counting wakes."""

    def __init__(self, capacity: int, max_message: int = 1 << 20) -> None:
        self.memory = local_memory(ring_memory_bytes(capacity))
        format_ring(self.memory)
        self.words = self.memory[:320].cast("Q")
        self.reader_wakes = self.writer_wakes = 0
        self.writer = RingWriter(self.memory, "a>b", self._wake_reader, max_message)
        self.reader = RingReader(self.memory, "a>b", self._wake_writer, max_message)

    def _wake_reader(self) -> None:
        self.reader_wakes += 1

    def _wake_writer(self) -> None:
        self.writer_wakes += 1


capacities = st.integers(2, 64).map(lambda words: words * 8)


@given(capacities, st.lists(st.binary(max_size=300), max_size=30), st.randoms())
def test_interleaved(capacity: int, messages: list[bytes], random: object) -> None:
    """A writer and a reader that stop at any point: fragments, wraps and full rings included."""
    pair = Pair(capacity)
    waiting = list(messages)
    received: list[bytes] = []
    while len(received) < len(messages):
        progress = False
        while waiting and random.random() < 0.7 and pair.writer.try_send(waiting[0]):
            waiting.pop(0)
            progress = True
        while random.random() < 0.7 and (message := pair.reader.try_receive()) is not None:
            received.append(message)
            progress = True
        if not progress and not waiting:
            while (message := pair.reader.try_receive()) is not None:
                received.append(message)
    assert received == messages
    assert pair.reader.try_receive() is None
    sent, got = pair.writer.statistics(), pair.reader.statistics()
    assert sent.messages == got.messages == len(messages)
    assert sent.frames == got.frames
    assert sent.bytes == got.bytes == sum(map(len, messages))
    assert 0 <= sent.high_water <= capacity


@given(capacities, st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_event_driven(capacity: int, messages: list[bytes]) -> None:
    """Each side acts only when woken: a lost wake-up would leave messages undelivered."""
    pair = Pair(capacity)
    waiting, received = list(messages), []

    def write() -> None:
        while waiting and pair.writer.try_send(waiting[0]):
            waiting.pop(0)

    def read() -> None:
        while True:
            pair.reader.set_asleep(False)
            while (message := pair.reader.try_receive()) is not None:
                received.append(message)
            pair.reader.set_asleep(True)
            if not pair.reader.ready():
                return

    read()
    write()
    while pair.reader_wakes or pair.writer_wakes:
        if pair.reader_wakes:
            pair.reader_wakes = 0
            read()
        if pair.writer_wakes:
            pair.writer_wakes = 0
            write()
    assert received == messages


def test_two_mappings_of_one_memfd() -> None:
    fd = create_memfd("ring", ring_memory_bytes(64))
    ours, theirs = map_memfd(fd), map_memfd(fd)
    os.close(fd)
    format_ring(ours)
    writer = RingWriter(ours, "a>b", lambda: None)
    reader = RingReader(theirs, "a>b", lambda: None)
    for n in range(100):
        message = bytes([n]) * (n % 25)
        assert writer.try_send(message)
        assert reader.try_receive() == message


def test_memfd_can_not_shrink() -> None:
    fd = create_memfd("ring", 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def test_full_ring_waits_and_wakes_once_there_is_room() -> None:
    pair = Pair(64)
    # Frames of 8 + 16 bytes: two fit into 64, the third has 16 bytes too few.
    assert pair.writer.try_send(b"a" * 16)
    assert pair.writer.try_send(b"b" * 16)
    assert not pair.writer.try_send(b"c" * 16)
    assert pair.writer.statistics().full_waits == 1
    assert pair.reader.try_receive() == b"a" * 16
    assert pair.writer_wakes == 1
    assert pair.writer.try_send(b"c" * 16)
    assert pair.reader.try_receive() == b"b" * 16
    assert pair.reader.try_receive() == b"c" * 16
    assert pair.writer_wakes == 1


def test_wake_comes_only_when_enough_is_free() -> None:
    pair = Pair(64)
    for _ in range(4):
        assert pair.writer.try_send(b"12345678")  # 16 bytes each: full
    assert not pair.writer.try_send(b"x" * 24)  # needs 32
    pair.reader.try_receive()
    assert pair.writer_wakes == 0
    pair.reader.try_receive()
    assert pair.writer_wakes == 1


def test_awake_reader_is_not_woken() -> None:
    pair = Pair(64)
    pair.writer.try_send(b"a")
    assert pair.reader_wakes == 0
    pair.reader.set_asleep(True)
    pair.writer.try_send(b"b")
    pair.writer.try_send(b"c")
    assert pair.reader_wakes == 1


def test_message_over_the_maximum_is_refused_by_name() -> None:
    pair = Pair(64, max_message=100)
    with pytest.raises(MessageTooLargeError, match=r"a>b: a message of 101 bytes .* of 100"):
        pair.writer.try_send(bytes(101))
    assert pair.reader.try_receive() is None


def test_dead_peer_is_named_after_what_it_sent() -> None:
    pair = Pair(64)
    pair.writer.try_send(b"last words")
    pair.reader.peer_gone("a of rank 0 was killed by signal 9")
    pair.writer.peer_gone("b of rank 0 was killed by signal 9")
    assert pair.reader.try_receive() == b"last words"
    with pytest.raises(PeerGoneError, match="a of rank 0 was killed"):
        pair.reader.try_receive()
    with pytest.raises(PeerGoneError, match="b of rank 0 was killed"):
        pair.writer.try_send(b"x")


@given(st.integers(0, 2**64 - 1))
def test_corrupt_head(head: int) -> None:
    pair = Pair(64)
    pair.words[HEAD] = head
    if head == 0:
        assert pair.reader.try_receive() is None
    elif head > 64 or head % 8:
        with pytest.raises(RingCorruptError, match="impossible"):
            pair.reader.try_receive()


@given(st.integers(1, 2**64 - 1))
def test_corrupt_tail(tail: int) -> None:
    pair = Pair(64)
    pair.words[TAIL] = tail
    with pytest.raises(RingCorruptError):
        pair.writer.try_send(b"x")


@settings(max_examples=300)
@given(st.binary(min_size=64, max_size=64), st.integers(1, 8))
def test_corrupt_frames_end(data: bytes, words: int) -> None:
    """Any bytes in the ring: messages, a named error, or nothing; never an endless loop."""
    pair = Pair(64)
    pair.memory[320:] = data
    pair.words[HEAD] = words * 8
    try:
        while pair.reader.try_receive() is not None:
            pass
    except RingCorruptError:
        return


def test_fragment_that_does_not_continue_its_message() -> None:
    pair = Pair(64, max_message=1000)
    # Two fragments of 24 bytes fill the ring; 52 bytes stay behind them.
    assert not pair.writer.try_send(bytes(100))
    assert int.from_bytes(pair.memory[356:360], "little") == 52
    pair.memory[356:360] = (7).to_bytes(4, "little")
    with pytest.raises(RingCorruptError, match="24 bytes, 7 to follow"):
        pair.reader.try_receive()


def test_header_of_another_size() -> None:
    memory = local_memory(ring_memory_bytes(64))
    with pytest.raises(RingCorruptError, match="its header says 0"):
        RingReader(memory, "a>b", lambda: None)


def test_fences_exist() -> None:
    assert fence.full_fence is not None
    assert fence.membarrier_fence("riscv64") is None
    for candidate in (fence.libatomic_fence(), fence.membarrier_fence("x86_64")):
        if candidate is not None:
            candidate()


@pytest.mark.parametrize("ring_fence", ["libatomic", "membarrier"])
def test_two_processes_under_stress(ring_fence: str) -> None:
    """50,000 frames of 0 to 700 bytes with checksums through 768 bytes, both sides sleeping."""
    frames = 50_000 if ring_fence == "libatomic" else 5_000
    status, errors = _stress(frames, ring_fence)
    assert status == 0, errors


def test_producer_killed_midway() -> None:
    """What arrived is whole; then the pidfd says that no more will."""
    status, errors = _stress(0, "killed")
    assert status == 0, errors


def _stress(frames: int, mode: str) -> tuple[int, str]:
    script = Path(__file__).with_name("toy_stress.py")
    done = subprocess.run(
        [sys.executable, str(script), "reader", str(frames), mode],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stderr


def test_poll_sees_an_eventfd() -> None:
    """The wake between processes: an eventfd write is there for whoever polls."""
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    assert not select.select([fd], [], [], 0)[0]
    os.eventfd_write(fd, 1)
    assert select.select([fd], [], [], 0)[0]
    os.close(fd)
