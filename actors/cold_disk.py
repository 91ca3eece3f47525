"""The disk tier's work on one rank: pages out, pages in, one operation after the other."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import crc32c
import msgspec

from actors.cold_log import ColdLog
from actors.cold_slab import Slab, aligned
from actors.messages.engine_scheduler import ColdEnded
from dgpp.cache.cold_ops import INVENTORY, Inventory, Restore, Spill
from dgpp.cache.cold_room import blob_pages
from dgpp.state.pools import StatePools

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
    """A rank's slab in `folder`, with the list of what its `pages` of `page_size` bytes hold.

    What an earlier run left is taken over where `keeps` and `key` is that run's; without `keeps`
    nothing is left behind either. Raises ConfigError where the files cannot be used.
    """

    def __init__(
        self, folder: Path, rank: int, page_size: int, pages: int, key: bytes, *, keeps: bool = True
    ) -> None:
        self._keeps = keeps
        self._paths = [folder / f"rank{rank}.slab", folder / f"rank{rank}.index"]
        self.slab = Slab(self._paths[0], page_size, pages)
        if not keeps:
            self._paths[1].unlink(missing_ok=True)
        self.list = ColdLog(self._paths[1], key)
        for remark in filter(None, (self.slab.warning, self.list.remark)):
            _log.warning("disk tier: %s", remark)

    def close(self) -> None:
        self.list.close()
        self.slab.close()
        if not self._keeps:
            for path in self._paths:
                path.unlink(missing_ok=True)


class ColdDisk:
    """A thread that moves blocks and snapshots between `pools` and `files`.

    `answer` is called from the thread with what each operation came to.

    A block or a snapshot that an operation names stays as it is until its end: the scheduler sees
    to that. So the thread needs no lock beside the engine.
    """

    def __init__(
        self, files: ColdFiles, pools: StatePools, answer: Callable[[ColdEnded], object]
    ) -> None:
        self.figures = ColdFigures()
        self._files = files
        self._slab = files.slab
        self._list = files.list
        self._pools = pools
        self._answer = answer
        size = self._slab.page_bytes
        self._page = aligned(size)
        self._blob = aligned(max(1, blob_pages(pools.snapshot_bytes, size)) * size)
        self._jobs: queue.SimpleQueue[Spill | Restore | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="disk tier", daemon=True)

    def start(self) -> None:
        """Answer what is there, and begin to work."""
        self._answer(inventory_answer(self._list.contents.inventory()))
        self._thread.start()

    def put(self, job: Spill | Restore) -> None:
        """Work on `job` when those before it are done; what it copies from is computed."""
        self._jobs.put(job)

    def close(self) -> None:
        """End after the operation that is under way."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._files.close()

    @property
    def pending(self) -> int:
        """Operations that wait."""
        return self._jobs.qsize()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            start = time.monotonic_ns()
            error = ""
            try:
                self._spill(job) if isinstance(job, Spill) else self._restore(job)
            except (OSError, ValueError) as failure:
                # Whatever it is: a thread that ended here would leave prompts waiting for ever.
                error = str(failure)
                self.figures.failures += 1
            spent = time.monotonic_ns() - start
            if isinstance(job, Spill):
                self.figures.spills += 1
                self.figures.spill_ns += spent
            else:
                self.figures.restores += 1
                self.figures.restore_ns += spent
            self._answer(ColdEnded(job.op, not error, error=error))

    def _spill(self, job: Spill) -> None:
        sums: list[int] = []
        pages = [page for unit in job.units for page in unit.pages]
        for page, block in zip(pages, job.blocks, strict=True):
            self._pools.read_block(block, self._page)
            sums.append(self._write(page, self._page))
        if job.entry.blob:
            self._pools.read_snapshot(job.snapshot, self._blob)
            sums += [self._write(page, part) for page, part in self._parts(job.entry.blob)]
        self._list.add(job, tuple(sums))

    def _restore(self, job: Restore) -> None:
        for page, block in zip(job.pages, job.blocks, strict=True):
            self._read(page, self._page)
            self._pools.write_block(block, self._page)
        if job.blob:
            for page, part in self._parts(job.blob):
                self._read(page, part)
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
        expected = self._list.contents.sums.get(page)
        if crc32c.crc32c(out) != expected:
            raise OSError(f"page {page}: not what was written (CRC-32C)")


def inventory_answer(found: Inventory) -> ColdEnded:
    """What a rank says of its disk at the start: all ranks must find the same."""
    digest = hashlib.sha256(msgspec.msgpack.encode(found)).digest()
    return ColdEnded(INVENTORY, True, int.from_bytes(digest[:8], "little"), found)
