"""Where a decode step's time goes on this GPU: the step without each of its kernels, in turn.

usage: python scripts/bench_step.py [--model deploy/facts/glm-4.7.json] [--layers 8] [--batch 1]
                                    [--context 512,8192] [--timeline]

Every kernel of one real step (forward pass, head, pick) is noted, and recorded as one CUDA graph;
then again without the kernels of one name and grid. What that saves is what they cost where they
stand, their overlap with their neighbours included. The others compute the same work on stale rows.
`--timeline` also prints when each kernel of a step ran, as PyTorch's profiler sees it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from command_line import Options, ended, need
from graph_clock import recorded

from dgpp.bench.drive import Driver
from dgpp.cli.bench import _engine, _Wanted
from dgpp.cli.numbers import most_of
from dgpp.engine.model_engine import ModelEngine
from dgpp.sample.tables import allocate_tables
from dgpp.sched.plan import DecodeRow, Plan

REPLAYS, RUNS = 20, 7
STREAMING = ("linear", "gated")

Launch = tuple[tuple[Any, ...], dict[str, Any]]
Key = tuple[str, str, tuple[int, ...]]


def key_of(launch: Launch) -> Key:
    unit, name, grid = launch[0][:3]
    return unit.name, name, tuple(grid)


def noted(driver: Driver, context: int, batch: int) -> list[Launch]:
    """The launches of one decode step of `batch` slots at `context`, run eagerly."""
    engine: ModelEngine = driver.engine
    kernels = engine.backend._kernels
    launch = kernels.launch
    seen: list[Launch] = []

    def note(*arguments: Any, **more: Any) -> None:
        seen.append((arguments, more))
        launch(*arguments, **more)

    for slot in range(batch):
        driver.read(slot, context)
    tokens = driver.decode(context, [7919 * slot % 1000 for slot in range(batch)], 3)
    tables = allocate_tables(engine.limits.slots, engine.limits.vocab_size)
    rows = tuple(DecodeRow(slot, context, token) for slot, token in enumerate(tokens))
    replay, engine.backend.replay = engine.backend.replay, lambda rows, step: False
    kernels.launch = note
    try:
        plan = Plan(1 << 30, decodes=rows)
        engine.launch(plan, tables)
        engine.collect(plan.step)
    finally:
        kernels.launch, engine.backend.replay = launch, replay
    return [held for held in seen if key_of(held)[1] != "begin_step"]


def replayed(engine: ModelEngine, launches: Iterable[Launch]) -> Callable[[int], float]:
    """Seconds per replay of `launches` as one graph."""

    def enqueue() -> None:
        for arguments, more in launches:
            engine.backend._kernels.launch(*arguments, **more)

    engine.backend._enter()
    return recorded(engine.backend._stream, enqueue)


def timed(engine: ModelEngine, launches: Iterable[Launch]) -> float:
    """Microseconds of a step of `launches`: the median of several runs."""
    replay = replayed(engine, launches)
    return 1e6 * statistics.median(replay(REPLAYS) for _ in range(RUNS))


def ablate(engine: ModelEngine, launches: list[Launch]) -> None:
    whole = timed(engine, launches)
    again = timed(engine, launches)
    print(f"  whole step: {len(launches)} kernels, {whole:.1f} us, again {again:.1f}")
    streams = [held for held in launches if key_of(held)[1].startswith(STREAMING)]
    print(f"  streaming kernels alone: {len(streams)}, {timed(engine, streams):.1f} us")
    counts = Counter(map(key_of, launches))
    for key, count in counts.items():
        rest = [held for held in launches if key_of(held) != key]
        saved = whole - timed(engine, rest)
        unit, name, grid = key
        print(
            f"  {unit + '.' + name:32} {grid!s:18} x{count:3}  {saved:8.1f} us"
            f"  {saved / count:6.2f} each",
            flush=True,
        )


def timeline(engine: ModelEngine, launches: list[Launch]) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    replay = replayed(engine, launches)
    replay(3)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        replay(4)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = sorted((e["ts"], e["dur"], e["name"]) for e in events if e.get("cat") == "kernel")
    last = kernels[-len(launches) :]
    first = last[0][0]
    for (at, lasts, name), launch in zip(last, launches, strict=False):
        print(f"  {at - first:9.2f} +{lasts:7.2f}  {name:18} {key_of(launch)[2]}")


def main() -> None:
    parser = Options(description=__doc__)
    parser.add_argument("--model", default="deploy/facts/glm-4.7.json")
    parser.add_number("--layers", 8)
    parser.add_number("--batch", 1, most_of("engine.max_concurrency"))
    parser.add_numbers("--context", "512,8192")
    parser.add_argument("--timeline", action="store_true")
    options = parser.parse_args()
    if options.timeline:
        need("torch")
    contexts = options.context
    told = {"load": "dummy", "backend": "cuda", "threads": None}
    wanted = _Wanted(None, options.model, options.layers, told)
    with _engine(wanted, contexts, options.batch, 24) as bench:
        driver = bench.driver
        driver.open(range(options.batch), max(contexts))
        for context in contexts:
            copy = bench.rates[context] or 0.0
            rate = f"copy {copy / 1e12:.3f} TB/s"
            print(f"{options.model} batch {options.batch} context {context}, {rate}")
            launches = noted(driver, context, options.batch)
            ablate(driver.engine, launches)
            if options.timeline:
                timeline(driver.engine, launches)


if __name__ == "__main__":
    ended(main)
