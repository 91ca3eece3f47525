"""The disk tier's work on one rank: pages out, pages in, one operation after the other."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar, cast

import crc32c
import msgspec

from actors.cold_folder import ColdFolder
from actors.cold_log import ColdLog
from actors.cold_slab import Slab
from actors.context import ClockNs
from actors.messages.engine_scheduler import ColdEnded
from dgpp.cache.cold_ops import INVENTORY, Restore, Spill
from dgpp.cache.cold_room import blob_pages
from dgpp.errors import ConfigError
from dgpp.state.pools import StatePools

T = TypeVar("T")

_log = logging.getLogger("dgpp.cold")


class ColdFigures(msgspec.Struct):
    """Totals since the start; times in ns."""

    bytes_written: int = 0
    bytes_read: int = 0
    failures: int = 0
    spills: int = 0
    spill_ns: int = 0
    restores: int = 0
    restore_ns: int = 0


class ColdFiles:
    """A rank's slab in `folder`, with the list of what its `pages` of `page_bytes` hold.

    What an earlier run left is taken over where `keeps` and `key` is that run's; without `keeps`
    nothing is left behind either. Raises ConfigError where the files cannot be used.
    """

    def __init__(
        self,
        folder: ColdFolder,
        rank: int,
        page_bytes: int,
        pages: int,
        key: bytes,
        *,
        keeps: bool = True,
    ) -> None:
        self._folder = folder
        self._keeps = keeps
        self._names = [f"rank{rank}.slab", f"rank{rank}.index"]
        claimed = folder.claim(self._names[0])
        held = claimed.size()
        self.slab = Slab(claimed, page_bytes, pages)
        try:
            if not keeps:
                folder.remove(self._names[1])
            self.list = ColdLog(folder, self._names[1], key)
        except ConfigError:
            self.slab.close()
            raise
        listed = folder.path(self._names[1])
        if self.slab.warning:
            _log.warning("disk tier: %s", self.slab.warning)
        if self.list.remark:
            _log.warning("disk tier: %s: %s", listed, self.list.remark)
        if keeps and held and self.list.was_empty:
            _log.warning(
                "disk tier: %s is gone or empty, nothing of %s is used", listed, claimed.path
            )

    def close(self) -> None:
        self.list.close()
        self.slab.close()
        if not self._keeps:
            for name in self._names:
                self._folder.remove(name)


class ColdMover:
    """Moves blocks and snapshots between `pools` and `files`, page by page.

    A block or a snapshot that an operation names stays as it is until its end: the scheduler sees
    to that. So pages may be moved beside the engine, without a lock.
    """

    def __init__(
        self, files: ColdFiles, pools: StatePools, clock_ns: ClockNs = time.monotonic_ns
    ) -> None:
        self.figures = ColdFigures()
        self._files = files
        self._slab = files.slab
        self._list = files.list
        self._pools = pools
        self._clock_ns = clock_ns
        size = self._slab.page_bytes
        self._page = pools.staging(size)
        self._blob = pools.staging(max(1, blob_pages(pools.snapshot_bytes, size)) * size)

    def fence(self) -> None:
        """Jobs that are run from now on move what the engine's calls until now leave."""
        self._pools.fence()

    def inventory(self) -> ColdEnded:
        """What this rank says of its disk at the start."""
        found = self._list.found
        return ColdEnded(INVENTORY, True, found.points(), found)

    def run(self, job: Spill | Restore) -> Generator[None, None, ColdEnded]:
        """Do `job`, yielding after every page; what it came to."""
        figures, start, error = self.figures, self._clock_ns(), ""
        try:
            if isinstance(job, Spill) or not self._list.serves(job.onto):
                self._list.go_back(job.onto)
            yield from self._spill(job) if isinstance(job, Spill) else self._restore(job)
        except (OSError, ValueError) as failure:
            # Whatever it is: prompts would wait for ever for an operation without an end.
            error = str(failure)
            figures.failures += 1
        spent = self._clock_ns() - start
        took_s = spent / 1e9
        if isinstance(job, Spill):
            figures.spills += 1
            figures.spill_ns += spent
            return ColdEnded(job.op, not error, error=error, kind="spill", took_s=took_s)
        figures.restores += 1
        figures.restore_ns += spent
        return ColdEnded(job.op, not error, error=error, kind="restore", took_s=took_s)

    def close(self) -> None:
        self._files.close()

    def _spill(self, job: Spill) -> Iterator[None]:
        sums: list[int] = []
        pages = [page for unit in job.units for page in unit.pages]
        for page, block in zip(pages, job.blocks, strict=True):
            self._pools.read_block(block, self._page)
            sums.append(self._write(page, self._page))
            yield
        if job.entry.blob:
            self._pools.read_snapshot(job.snapshot, self._blob)
            for page, part in self._parts(job.entry.blob):
                sums.append(self._write(page, part))
                yield
        self._list.add(job, tuple(sums))

    def _restore(self, job: Restore) -> Iterator[None]:
        for page, block in zip(job.pages, job.blocks, strict=True):
            self._read(page, self._page)
            self._pools.write_block(block, self._page)
            yield
        if job.blob:
            for page, part in self._parts(job.blob):
                self._read(page, part)
                yield
            self._pools.write_snapshot(job.snapshot, self._blob)

    def _parts(self, pages: tuple[int, ...]) -> list[tuple[int, memoryview]]:
        size = self._slab.page_bytes
        return [(page, self._blob[i * size : (i + 1) * size]) for i, page in enumerate(pages)]

    def _write(self, page: int, data: memoryview) -> int:
        self._slab.write(page, data)
        self.figures.bytes_written += len(data)
        return int(crc32c.crc32c(data))

    def _read(self, page: int, out: memoryview) -> None:
        self._slab.read(page, out)
        self.figures.bytes_read += len(out)
        expected = self._list.sums.get(page)
        if crc32c.crc32c(out) != expected:
            raise OSError(f"{self._slab.path}: page {page}: not what was written (CRC-32C)")


class ColdDisk:
    """A thread that works for `mover`, one operation after the other.

    `answer` is called from the thread with what each operation came to, `broke` with an error that
    is none of a disk's: then no further operation will end.
    """

    def __init__(
        self,
        mover: ColdMover,
        answer: Callable[[ColdEnded], object],
        broke: Callable[[Exception], object],
    ) -> None:
        self.figures = mover.figures
        self._mover = mover
        self._answer = answer
        self._broke = broke
        self._jobs: queue.SimpleQueue[Spill | Restore | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="disk tier", daemon=True)

    def start(self) -> None:
        """Answer what is there, and begin to work."""
        self._answer(self._mover.inventory())
        self._thread.start()

    def put(self, job: Spill | Restore) -> None:
        """Work on `job` when those before it are done. Called by the thread of the engine's steps,
        once what it copies from is enqueued."""
        self._mover.fence()
        self._jobs.put(job)

    def close(self) -> None:
        """End after the operation that is under way."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._mover.close()

    @property
    def pending(self) -> int:
        """Operations that wait."""
        return self._jobs.qsize()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                ended = to_end(self._mover.run(job))
            except Exception as error:  # noqa: BLE001 - any failure of an actor ends the world
                self._broke(error)
                return
            self._answer(ended)


def to_end(work: Generator[None, None, T]) -> T:
    """Run `work` to its end; what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("T", end.value)
