"""`toy_stress.py reader FRAMES MODE`: starts a writer process and checks all it sends.

Both sides really sleep (poll on an eventfd) whenever the protocol lets them, so that a lost wake
shows as a time-out.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import zlib

from actors import fence, ring
from actors.errors import PeerGoneError
from actors.memory import create_memfd, map_memfd

CAPACITY = 768  # fragments of at most 376 bytes
PATIENCE_MS = 20_000


def frames_of(seed: int) -> object:
    source = random.Random(seed)
    while True:
        body = source.randbytes(source.choice((0, 1, 7, 8, 60, 500, source.randrange(700))))
        yield zlib.crc32(body).to_bytes(4, "little") + body


def sleep_on(fd: int, *others: int) -> list[int]:
    poll = select.poll()
    for each in (fd, *others):
        poll.register(each, select.POLLIN)
    ready = [each for each, _ in poll.poll(PATIENCE_MS)]
    if not ready:
        raise SystemExit("lost wake-up")
    if fd in ready:
        os.eventfd_read(fd)
    return ready


def use(mode: str) -> None:
    if mode == "membarrier":
        ring.full_fence = fence.membarrier_fence("x86_64") or fence.full_fence


def write(memory_fd: int, own: int, peer: int, count: int) -> None:
    writer = ring.RingWriter(map_memfd(memory_fd), "w>r", lambda: os.eventfd_write(peer, 1))
    source = frames_of(7)
    sent = 0
    while sent < count or not count:
        frame = next(source)
        while not writer.try_send(frame):
            sleep_on(own)
        sent += 1
    print(writer.statistics(), file=sys.stderr)


def read(count: int, mode: str) -> None:
    memory_fd = create_memfd("stress", ring.ring_memory_bytes(CAPACITY))
    memory = map_memfd(memory_fd)
    ring.format_ring(memory)
    own, peer = os.eventfd(0), os.eventfd(0)
    script = [sys.executable, __file__, "writer", str(count), mode]
    fds = (memory_fd, peer, own)
    child = subprocess.Popen([*script, *map(str, fds)], pass_fds=fds)
    death = os.pidfd_open(child.pid)
    reader = ring.RingReader(memory, "w>r", lambda: os.eventfd_write(peer, 1))
    source, received = frames_of(7), 0
    while received < count or not count:
        message = next_message(reader, own, death)
        assert message == next(source), f"message {received} is wrong"
        received += 1
        if not count and received == 500:
            child.kill()
    assert child.wait() == 0
    print(reader.statistics(), file=sys.stderr)


def next_message(reader: ring.RingReader, own: int, death: int) -> bytes:
    dead = False
    while True:
        reader.set_asleep(False)
        message = reader.try_receive()
        if message is not None:
            return message
        if dead:
            reader.peer_gone("w was killed")
            reader.try_receive()
        reader.set_asleep(True)
        ring.full_fence()
        if not reader.ready():
            dead = death in sleep_on(own, death)


if __name__ == "__main__":
    use(sys.argv[3])
    if sys.argv[1] == "writer":
        write(int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]), int(sys.argv[2]))
    else:
        try:
            read(int(sys.argv[2]), sys.argv[3])
        except PeerGoneError:
            assert sys.argv[3] == "killed"
