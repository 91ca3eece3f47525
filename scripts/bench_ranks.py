"""What ranks on GPUs of one host reach beside one rank, and what their sums take.

usage: python scripts/bench_ranks.py [--worlds 1,2] [--parts sums,decode,nvfp4,prefill,end]
                                     [--layers 8] [--batches 1,8,16] [--context 512]

A process per rank, rank r on GPU r (as far as there are: on one GPU ranks take turns, which times
nothing). `sums` times all-reduces of rows of GLM-4.7's 5,120 values, 32
in one recorded graph: pushed or pulled between peers, gathered by NCCL and added in rank order, and
NCCL's own. `decode`, `nvfp4` and `prefill` are of GLM-4.7's dimensions with `--layers` layers and
random weights, through the engine that serves. `end` kills the last rank amid decode.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from command_line import Options, ended

from dgpp.cli.numbers import most_of
from dgpp.errors import DgppError, WorldFailedError
from kernels_numba.gpu.device import device_count
from kernels_numba.gpu.probe import ask_device

WIDTH = 5120
ROWS = (1, 8, 16, 64, 512, 2048)
CHAIN = 32
NOTED = 200
"""Steps that are looked into."""
PARTS = ("sums", "decode", "nvfp4", "prefill", "end")
FACTS = Path(__file__).parents[1] / "deploy" / "facts"


class Rank:
    """One rank's process: its place, its ends, its options."""

    def __init__(self, options: argparse.Namespace) -> None:
        from dgpp.net.shm import ShmCollective

        self.devices = device_count()
        self.device = options.rank % self.devices
        self.options, self.rank, self.world = options, options.rank, options.world
        self.host = None
        if self.world > 1:
            self.host = ShmCollective(options.slab, self.rank, self.world)
            self.host.join()

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(f"world {self.world}  {text}", flush=True)

    def collective(self, name: str = "p2p") -> Any:
        from dgpp.net.nccl import open_nccl
        from dgpp.net.p2p import open_p2p

        if self.host is None:
            return None
        return (open_nccl if name == "nccl" else open_p2p)(self.host)

    # Sums ------------------------------------------------------------------------------------

    def sums(self) -> None:
        if self.host is None:
            return
        import cupy

        from kernels_numba.gpu.backend import CudaBackend

        backend = CudaBackend(max(ROWS), self.device)
        out = backend.tensor(WIDTH, wide=True)
        times: dict[str, dict[int, float]] = {}
        for name in ("p2p", "nccl") if self.devices >= self.world else ("p2p",):
            path = self.collective(name)
            part = path.partial(backend, WIDTH)
            times[name] = {
                rows: self._chained(backend, partial(path.all_reduce, rows, part, out))
                for rows in ROWS
            }
        stream = backend._stream.ptr
        for rows in ROWS if "nccl" in times else ():
            plain = path._ranks._world_of
            own = partial(plain.allReduce, part.pointer, part.pointer, rows * WIDTH, 7, 0, stream)
            times.setdefault("NCCL's own", {})[rows] = self._chained(backend, own)
        for rows in ROWS:
            told = "  ".join(
                f"{name} {by_rows[rows] * 1e6:.1f} us" for name, by_rows in times.items()
            )
            self.say(f"sum of {rows} rows ({4 * rows * WIDTH >> 10} KiB): {told}")
        cupy.get_default_memory_pool().free_all_blocks()

    def _chained(self, backend: Any, call: Callable[[], None]) -> float:
        """Seconds of one of CHAIN calls in a recorded graph, the slowest rank's median."""
        import cupy
        import numpy as np

        stream = backend._stream
        with stream:
            call()
            stream.synchronize()
            stream.begin_capture()
            for _ in range(CHAIN):
                call()
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
            times = []
            for _ in range(5):
                self.host.barrier()
                start, end = cupy.cuda.Event(), cupy.cuda.Event()
                start.record(stream)
                for _ in range(4):
                    graph.launch(stream)
                end.record(stream)
                end.synchronize()
                times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3 / (4 * CHAIN))
        return float(self.host.all_gather(np.array([statistics.median(times)])).max())

    # Models ----------------------------------------------------------------------------------

    def model(self, part: str) -> None:
        import cupy

        from dgpp.bench.cut import cut_layers
        from dgpp.bench.drive import Driver
        from dgpp.bench.measure import Decode, measure_prefill
        from dgpp.checkpoint.json_file import read_json
        from dgpp.engine.model_engine import DummyModel, ModelEngine
        from dgpp.models.plan import MemorySettings, plan_memory
        from kernels_numba.gpu.rates import CudaYardstick

        options = self.options
        name = "glm-4.7-nvfp4.json" if part == "nvfp4" else "glm-4.7.json"
        config = cut_layers(read_json(FACTS / name), options.layers)
        prefill = part == "prefill"
        batches = [1] if part in ("nvfp4", "end") or prefill else options.batches
        longest = 2048 if prefill else options.context + 512
        slots = max(batches)
        settings = MemorySettings(
            slots=slots, kv_capacity=slots * -(-longest // 64) * 64, backend="cuda", depth=1
        )
        plan = plan_memory(config, settings, self.world)
        began = time.monotonic()
        collective = self.collective()
        engine = ModelEngine(
            DummyModel(config), plan.limits, 1, backend="cuda", device=self.device,
            collective=collective,
        )  # fmt: skip
        engine.warm_up()
        engine.record()
        if collective is not None:
            collective.barrier()
            collective.serve()
        self.say(f"{part}: {plan.weight_bytes / 1e9:.1f} GB of weights a rank, "
                 f"ready in {time.monotonic() - began:.1f} s")  # fmt: skip
        driver = Driver(engine)
        if prefill:
            figure = measure_prefill(driver, plan, 2048, runs=3, product=None)
            self.say(f"prefill of {figure.tokens} tokens: {figure.ms:.1f} ms")
        elif part == "end":
            self.end(driver, collective)
        else:
            copy = CudaYardstick(self.device).bandwidth()
            decode = Decode(driver, plan, options.context, slots)
            for batch in batches:
                figure = decode.at(options.context, batch, steps=40, runs=5, bandwidth=copy)
                self.say(
                    f"{part}: batch {batch}  {figure.ms:.3f} ms ({figure.ms_min:.3f} to "
                    f"{figure.ms_max:.3f})  {figure.read_bytes / 1e9:.2f} GB read  "
                    f"{figure.of_bandwidth:.0%} of copy ({copy / 1e12:.2f} TB/s)"
                )
                self.steps(driver, collective, batch, copy)
        if part != "end":
            self._sums_of(collective)
        del driver, engine
        cupy.get_default_memory_pool().free_all_blocks()

    def steps(self, driver: Any, collective: Any, batch: int, copy: float) -> None:
        """Where each rank's decode steps go, beside its device's copy bandwidth."""
        import numpy as np

        engine, gaps, hosts = driver.engine, [], []
        launch, collect = engine.launch, engine.collect

        def launched(*arguments: Any) -> None:
            began = time.perf_counter()
            launch(*arguments)
            hosts.append(time.perf_counter() - began)

        def collected(step: int) -> Any:
            found = collect(step)
            gaps.append(engine.trace.gap_ns)
            return found

        before = 0.0 if collective is None else collective.statistics().waited_s
        engine.launch, engine.collect = launched, collected
        began = time.perf_counter()
        driver.decode(self.options.context, [5] * batch, NOTED)
        each = (time.perf_counter() - began) / NOTED
        del engine.launch, engine.collect
        waited = 0.0 if collective is None else collective.statistics().waited_s - before
        own = np.array(
            [each, statistics.median(gaps) / 1e9, statistics.median(hosts), waited / NOTED]
        )
        own = np.append(own * 1e6, copy / 1e12)
        every = own[None] if self.host is None else self.host.all_gather(own)
        for rank, (step, gap, host, wait, rate) in enumerate(every.tolist()):
            self.say(
                f"  rank {rank}: step {step:.0f} us, of which its device stood still {gap:.0f} and "
                f"waited for others {wait:.0f}; the host launched it in {host:.0f} us; "
                f"copy {rate:.2f} TB/s"
            )

    def _sums_of(self, collective: Any) -> None:
        if collective is not None:
            told = collective.statistics()
            self.say(
                f"{told.all_reduces} sums and {told.all_gathers} gathers, {told.waits} of them "
                f"waited {told.waited_s * 1e3:.1f} ms in all"
            )

    def end(self, driver: Any, collective: Any) -> None:
        """The last rank is killed between two steps; how soon the others know."""
        driver.open([0], 64)
        driver.read(0, 64)
        driver.decode(64, [5], 20)
        collective.barrier()
        if self.rank == self.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        try:
            while True:
                driver.decode(84, [5], 20)
        except DgppError as error:
            waited = time.monotonic() - began
            self.say(f"end: after {waited:.2f} s {type(error).__name__}: {error}")


def run_rank(options: argparse.Namespace) -> None:
    rank = Rank(options)
    for part in options.parts:
        if part == "sums":
            rank.sums()
        elif part != "end" or rank.world > 1:
            rank.model(part)
        if rank.host is not None and part != "end":
            rank.host.barrier()
    if "end" not in options.parts and rank.host is not None:
        rank.host.close()


def run_world(world: int, parts: Sequence[str]) -> None:
    """All ranks' processes. Raises WorldFailedError naming one that did not end as it should: at
    the part `end` the last one is killed."""
    from dgpp.net.slab import create_slab

    slab = create_slab(world)
    command = [sys.executable, __file__, *sys.argv[1:], "--world", str(world)]
    ranks = [
        subprocess.Popen([*command, "--slab", str(slab), "--rank", str(rank)], pass_fds=[slab])
        for rank in range(world)
    ]
    statuses = [rank.wait() for rank in ranks]
    os.close(slab)
    if world > 1 and "end" in parts and statuses[-1] == -signal.SIGKILL:
        statuses.pop()
    for rank, status in enumerate(statuses):
        if status:
            raise WorldFailedError(f"rank {rank} of {world} ended with status {status}; see above")


def main() -> None:
    parser = Options(description=__doc__)
    parser.add_numbers("--worlds", "1,2", most_of("world_size"))
    parser.add_names("--parts", ",".join(PARTS), PARTS)
    parser.add_number("--layers", 8)
    parser.add_numbers("--batches", "1,8,16", most_of("engine.max_concurrency"))
    parser.add_number("--context", 512)
    for hidden in ("rank", "world", "slab"):
        parser.add_argument(f"--{hidden}", default=-1, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank >= 0:
        run_rank(options)
        return
    # In a process of its own: the ranks' memory is all that is taken.
    ask_device()
    for world in options.worlds:
        run_world(world, options.parts)


if __name__ == "__main__":
    ended(main)
