"""A rank's disk on virtual time: real files' code over bytes that a fault may spoil.

What was written is kept twice: as it lies there, and as it was told. Where the two differ, whoever
reads must notice.
"""

from __future__ import annotations

import errno
from collections import deque
from pathlib import Path

from actors.cold_disk import ColdMover
from dgpp.cache.cold_ops import Restore

BLOCK_BYTES = 4
PAGE_BYTES = 16
SNAPSHOT_BYTES = 68


class SimFile:
    """One file, as bytes."""

    def __init__(self, folder, name) -> None:
        self.path = folder.path(name)
        self._folder = folder
        self._is_slab = name.endswith(".slab")
        self.data = bytearray()
        self.told = bytearray()

    def size(self):
        return len(self.data)

    def read(self, out, at):
        trouble = self._folder.trouble if self._is_slab else ""
        if trouble == "unreadable":
            raise OSError(errno.EIO, "Input/output error")
        found = self.data[at : at + len(out)]
        if trouble == "short read":
            del found[len(found) // 2 :]
        out[: len(found)] = found
        if self._is_slab and found != self.told[at : at + len(found)]:
            self._folder.read_damage = True
        return len(found)

    def write(self, data, at):
        trouble = self._folder.trouble
        if trouble == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        count = len(data)
        if trouble == "short write":
            count = self._folder.rng.randrange(count + 1)
        self._folder.last = (self, at, bytes(self.data[at : at + count]), count)
        for held in (self.data, self.told):
            held[at : at + count] = data[:count]
        return count

    def resize(self, size):
        for held in (self.data, self.told):
            del held[size:]
            held.extend(bytes(size - len(held)))

    def set_aside(self, size):
        self.resize(size)

    def room(self):
        return 1 << 50

    def close(self):
        """Its bytes stay with the folder."""


class SimFolder:
    """The files of one rank, which outlive its process. `trouble` is what every transfer meets;
    `cut_short`: there was some, or an end in the middle of a writing, so that pages may hold other
    things than the list says."""

    def __init__(self, rng) -> None:
        self.rng = rng
        self.trouble = ""
        self.cut_short = False
        self.read_damage = False
        self.last = None
        self._files = {}

    def path(self, name):
        return Path("disk") / name

    def claim(self, name):
        return self._files.setdefault(name, SimFile(self, name))

    def open(self, name, *, fresh=False):
        if fresh:
            self._files.pop(name, None)
        return self.claim(name)

    def rename(self, name, to):
        self._files[to] = self._files.pop(name)

    def remove(self, name):
        self._files.pop(name, None)

    def flip(self, suffix, *, everywhere):
        """Flip a bit, or one in each page, of the file with this suffix."""
        data = next((f.data for name, f in self._files.items() if name.endswith(suffix)), None)
        if not data:
            return
        step = PAGE_BYTES if everywhere else len(data)
        for at in range(0, len(data), step):
            bit = self.rng.randrange(8 * min(step, len(data) - at))
            data[at + bit // 8] ^= 1 << bit % 8

    def tear(self):
        """The rank fell in the middle of its last write."""
        if self.last is not None:
            file, at, before, count = self.last
            half = at + count // 2
            if len(before) == count:
                file.data[half : at + count] = before[count // 2 :]
            else:
                # It was the end of the file.
                del file.data[half:]


class SimColdDisk:
    """Stands in for the disk tier's thread: a page now and a page then. The ledger's `lies` get
    what a damaged page was passed off for, its `cold` counts what operations came to."""

    def __init__(self, mover, folder, loop, answer, ledger) -> None:
        self.figures = mover.figures
        self._mover: ColdMover = mover
        self._folder = folder
        self._loop = loop
        self._pace_s = ledger.case.disk_s
        self._answer = answer
        self._ledger = ledger
        self._jobs = deque()
        self._work = None
        self._over = False

    @property
    def pending(self):
        return len(self._jobs)

    def start(self):
        self._answer(self._mover.inventory())

    def put(self, job):
        self._jobs.append(job)
        if self._work is None:
            self._begin()

    def close(self):
        self._over = True
        self._mover.close()

    def _begin(self):
        self._folder.read_damage = False
        self._work = self._mover.run(self._jobs[0])
        self._later()

    def _later(self):
        self._loop.call_later(self._loop.moment() * self._pace_s, self._advance)

    def _advance(self):
        if self._over:
            return
        try:
            for _ in range(1 + int(self._loop.moment() * 6)):
                next(self._work)
        except StopIteration as end:
            self._ended(self._jobs.popleft(), end.value)
        else:
            self._later()

    def _ended(self, job, ended):
        self._ledger.cold[type(job).__name__, ended.ok] += 1
        lies = self._ledger.lies
        if isinstance(job, Restore) and self._folder.read_damage:
            if ended.ok:
                lies.append(f"{job} read damaged pages and said nothing")
            elif "not what was written (CRC-32C)" not in ended.error:
                lies.append(f"{job} read damaged pages and said {ended.error}")
        elif not ended.ok and not self._folder.cut_short:
            lies.append(f"{job} failed for nothing: {ended.error}")
        self._work = None
        self._answer(ended)
        if self._jobs:
            self._begin()
