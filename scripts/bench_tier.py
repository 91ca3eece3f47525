"""What the disk tier costs the steps beside it: decode alone, beside spills, beside readings back.

usage: python scripts/bench_tier.py [--backend cpu|cuda] [--model CONFIG] [--layers N] [--folder D]

Random weights in the model's shapes. The three are timed in turn, several times over, in one run;
spills and readings follow one another without a pause, which no server's do.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from command_line import Options, ended

from actors.cold_disk import ColdFiles, ColdMover, to_end
from actors.cold_folder import OsFolder
from dgpp.bench.cut import cut_layers
from dgpp.bench.drive import Driver
from dgpp.cache.cold_ops import ColdEntry, ColdRecord, ColdUnit, Restore, Spill, point_after
from dgpp.cache.cold_room import page_bytes
from dgpp.checkpoint.json_file import read_json
from dgpp.engine.loading import DummyModel
from dgpp.engine.model_engine import ModelEngine
from dgpp.models.plan import MemorySettings, plan_memory

PROMPT = 512
STEPS = 200
ROUNDS = 5
PAGES = 32


class Mover:
    """Spills the same blocks again and again, or reads them back, while `busy` says so."""

    def __init__(self, engine: ModelEngine, folder: Path, first: int) -> None:
        size = page_bytes(engine.pools.block_bytes)
        files = ColdFiles(OsFolder(folder), 0, size, PAGES, b"bench", keeps=False)
        self.mover = ColdMover(files, engine.pools)
        self.busy = ""
        self._files = files
        self._blocks = tuple(range(first, first + PAGES))
        self._point = 0
        self._thread = threading.Thread(target=self._work, daemon=True)

    def run(self, kind: str) -> None:
        """Begin to spill, or to read back once something was spilled."""
        self.mover.fence()
        self.busy = kind
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def rest(self) -> None:
        self.busy = ""
        self._thread.join()

    def _work(self) -> None:
        units = tuple(ColdUnit((page,), page - 1, bytes(8)) for page in range(PAGES))
        entry = ColdEntry(PAGES - 1, 64 * PAGES, "tail", 0)
        while self.busy:
            if self.busy == "spill":
                job: Spill | Restore = Spill(1, units, self._blocks, entry, onto=self._point)
            else:
                job = Restore(2, tuple(range(PAGES)), self._blocks, onto=self._point)
            ended = to_end(self.mover.run(job))
            if not ended.ok:
                sys.exit(ended.error)
            if isinstance(job, Spill):
                self._point = point_after(self._point, ColdRecord(units, entry))


def main() -> int:
    parser = Options(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", default="deploy/facts/glm-4.7.json")
    parser.add_number("--layers", 8)
    parser.add_argument("--folder", default="", help="where the slab is; a temporary one if none")
    given = parser.parse_args()
    config = cut_layers(read_json(Path(given.model)), given.layers)
    depth = int(given.backend == "cuda")
    settings = MemorySettings(
        slots=1, kv_capacity=4096, backend=given.backend, depth=depth, graphs=bool(depth)
    )
    engine = ModelEngine(
        DummyModel(config), plan_memory(config, settings, 1).limits, 2, backend=given.backend
    )
    engine.warm_up()
    if depth:
        engine.record()
    driver = Driver(engine)
    driver.open((0,), PROMPT)
    tokens = [driver.read(0, PROMPT)]
    times: dict[str, list[float]] = defaultdict(list)
    with TemporaryDirectory(dir=given.folder or None) as folder:
        mover = Mover(engine, Path(folder), engine.limits.blocks - PAGES)
        for _ in range(ROUNDS):
            for kind in ("", "spill", "restore"):
                if kind:
                    mover.run(kind)
                for step in range(STEPS):
                    start = time.perf_counter()
                    tokens = driver.decode(PROMPT + step, tokens, 1)
                    times[kind or "alone"].append(time.perf_counter() - start)
                if kind:
                    mover.rest()
        figures = mover.mover.figures
        mover.mover.close()
    for kind, taken in times.items():
        p50, p99 = np.percentile(taken, (50, 99)) * 1e3
        print(f"decode step, {kind:8} p50 {p50:8.3f} ms   p99 {p99:8.3f} ms")
    for kind, size, ns in (
        ("written", figures.bytes_written, figures.spill_ns),
        ("read back", figures.bytes_read, figures.restore_ns),
    ):
        print(f"{kind:10} {size / 2**30:7.2f} GiB at {size / max(1, ns):6.2f} GB/s")
    return 0


if __name__ == "__main__":
    ended(main)
