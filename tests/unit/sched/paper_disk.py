"""A disk on paper under a paper engine: slow, and now and then it fails."""

from __future__ import annotations

from collections import deque

from paper_engine import PaperEngine

from dgpp.cache.cold_ops import ColdDone, ColdEntry, ColdUnit, Inventory, Restore, Spill
from dgpp.sched.plan import Plan


class PaperDisk:
    """Operations wait in order until `finish` does the next one: so late as it may be done.

    `pages` holds the rows of each block, `blobs` the state of each snapshot by its first page;
    `units` and `entries` are what an index on disk would say.
    """

    def __init__(self, engine: PaperEngine) -> None:
        self.engine = engine
        self.pages: dict[int, list[int | None]] = {}
        self.blobs: dict[int, tuple[int, ...]] = {}
        self.units: dict[int, ColdUnit] = {}
        self.entries: dict[int, ColdEntry] = {}
        self.waiting: deque[Spill | Restore] = deque()

    def take(self, plan: Plan) -> None:
        self.waiting.extend(plan.spills)
        self.waiting.extend(plan.restores)

    def finish(self, *, ok: bool) -> ColdDone | None:
        """Do the operation that waits longest; without `ok` what it wrote is nonsense."""
        if not self.waiting:
            return None
        job = self.waiting.popleft()
        if isinstance(job, Spill):
            self._spill(job, ok=ok)
        else:
            self._restore(job, ok=ok)
        return ColdDone(job.op, ok)

    def _spill(self, job: Spill, *, ok: bool) -> None:
        pages = [page for unit in job.units for page in unit.pages]
        assert len(pages) == len(job.blocks)
        nonsense = [-9] * self.engine.limits.block_tokens
        for page, block in zip(pages, job.blocks, strict=True):
            self.pages[page] = list(self.engine.blocks[block]) if ok else nonsense
        if job.entry.blob:
            state = self.engine.snapshots[job.snapshot] if ok else (-9,)
            self.blobs[job.entry.blob[0]] = state
        if ok:
            for unit in job.units:
                self.units.pop(unit.pages[0], None)
                self.units[unit.pages[0]] = unit
            self.entries[job.op] = job.entry

    def _restore(self, job: Restore, *, ok: bool) -> None:
        nonsense = [-7] * self.engine.limits.block_tokens
        for page, block in zip(job.pages, job.blocks, strict=True):
            self.engine.blocks[block] = list(self.pages[page]) if ok else list(nonsense)
        if job.blob:
            self.engine.snapshots[job.snapshot] = self.blobs[job.blob[0]] if ok else (-7,)

    def inventory(self) -> Inventory:
        """What the next run finds, as far as its pages are those of the latest writing."""
        owner: dict[int, int] = {}
        for entry in self.entries.values():
            for page in entry.blob:
                owner[page] = entry.blob[0]
        blobs = set(owner)
        units = [u for u in self.units.values() if not blobs.intersection(u.pages)]
        return Inventory(tuple(units), tuple(self.entries.values()))
