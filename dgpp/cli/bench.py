"""`dgpp bench`: what the engine does on this machine, beside what the machine could do."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dgpp.engine.model_engine import ModelEngine
    from dgpp.models.plan import MemoryPlan

app = typer.Typer(help="Measure decode and prefill.", no_args_is_help=True)

READ_BYTES = 256 << 20
READS = 8

Checkpoint = Annotated[str, typer.Option(help="Checkpoint directory or ORG/NAME.")]
Threads = Annotated[int, typer.Option(help="Kernel threads.", min=1)]
Context = Annotated[int, typer.Option(help="Tokens already in the cache, or to read.", min=1)]
Batch = Annotated[int, typer.Option(help="Rows per step.", min=1, max=64)]
Steps = Annotated[int, typer.Option(help="Timed repetitions.", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _engine(model: str, threads: int, slots: int, tokens: int) -> tuple[ModelEngine, MemoryPlan]:
    from dgpp.checkpoint.checkpoint import Checkpoint as Files
    from dgpp.checkpoint.host_memory import available_memory
    from dgpp.checkpoint.resolve import resolve_model
    from dgpp.engine.model_engine import ModelEngine
    from dgpp.errors import ConfigError
    from dgpp.models.plan import MemorySettings, plan_memory, require_fit

    files = Files(resolve_model(model))
    per_slot = -(-tokens // 64) * 64
    plan = plan_memory(files.config, MemorySettings(slots=slots, kv_capacity=slots * per_slot))
    if tokens > plan.limits.position_ceiling:
        raise ConfigError(
            f"--context: {tokens} positions are needed, {model} has {plan.limits.position_ceiling}"
        )
    require_fit(plan, available_memory())
    engine = ModelEngine(files, plan.limits, threads)
    engine.warm_up()
    return engine, plan


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _open_slots(engine: ModelEngine, batch: int, tokens: int) -> None:
    """`batch` requests of `tokens` prompt tokens each, not yet read."""
    import numpy as np

    from dgpp.sample.params import SamplingParams
    from dgpp.sched.plan import Open, Plan
    from dgpp.sched.request import Submit, pack_ids

    limits = engine.limits
    each = limits.blocks // limits.slots
    ids = np.random.default_rng(0).integers(0, limits.vocab_size, tokens)
    opens = tuple(
        Open(
            slot,
            Submit(f"bench-{slot}", pack_ids(ids), 1, SamplingParams(temperature=0.0)),
            tuple(range(slot * each, (slot + 1) * each)),
        )
        for slot in range(batch)
    )
    engine.forward(Plan(0, closes=tuple(range(batch)), opens=opens))


def _read_prompts(engine: ModelEngine, batch: int, tokens: int) -> None:
    from dgpp.sched.plan import Plan, PrefillChunk

    step = engine.limits.chunk_limit
    for slot in range(batch):
        for start in range(0, tokens, step):
            count = min(step, tokens - start)
            chunk = PrefillChunk(slot, start, count, last=start + count == tokens)
            engine.forward(Plan(1, prefills=(chunk,)))


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, value in result.items():
        typer.echo(f"{name:<28} {value:.4g}" if isinstance(value, float) else f"{name:<28} {value}")


@app.command("decode")
def bench_decode(
    checkpoint: Checkpoint,
    context: Context = 64,
    batch: Batch = 1,
    steps: Steps = 100,
    threads: Threads = 2,
    as_json: Json = False,
) -> None:
    """One decode step: median time, bytes it must read, and the read bandwidth of the same run.

    `ratio` is the step's time over the time that its bytes take at that bandwidth.
    """
    from dgpp.sample.tables import allocate_tables
    from dgpp.sched.plan import DecodeRow, Plan
    from kernels_numba.cpu.bandwidth import reader

    engine, plan = _engine(checkpoint, threads, batch, context + steps + 1)
    tables = allocate_tables(batch, engine.limits.vocab_size)
    _open_slots(engine, batch, context)
    _read_prompts(engine, batch, context)
    read = reader(READ_BYTES, threads)
    size = read()
    reads, forwards, selects = [], [], []
    for step in range(steps):
        rows = tuple(DecodeRow(slot, context + step, 5) for slot in range(batch))
        forwards.append(_timed(lambda rows=rows: engine.forward(Plan(2, decodes=rows))))  # type: ignore[misc]
        selects.append(_timed(lambda: engine.select(tables)))
        if step % max(1, steps // READS) == 0:
            reads.append(_timed(read))
    bandwidth = size / statistics.median(reads)
    kv_bytes = plan.token_bytes * context * batch
    step_seconds = statistics.median(
        forward + select for forward, select in zip(forwards, selects, strict=True)
    )
    must_read = plan.read_bytes + kv_bytes
    _show(
        {
            "context": context,
            "batch": batch,
            "ms_per_step": 1e3 * step_seconds,
            "tokens_per_second": batch / step_seconds,
            "forward_ms": 1e3 * statistics.median(forwards),
            "select_ms": 1e3 * statistics.median(selects),
            "weight_bytes": plan.read_bytes,
            "kv_bytes": kv_bytes,
            "read_gb_per_second": bandwidth / 1e9,
            "ratio": step_seconds * bandwidth / must_read,
        },
        as_json,
    )


@app.command("prefill")
def bench_prefill(
    checkpoint: Checkpoint,
    context: Context = 512,
    steps: Steps = 5,
    threads: Threads = 2,
    as_json: Json = False,
) -> None:
    """Read a prompt of `--context` tokens: median time and rate."""
    engine, _ = _engine(checkpoint, threads, 1, context + 1)
    times = []
    for _ in range(steps):
        _open_slots(engine, 1, context)
        times.append(_timed(lambda: _read_prompts(engine, 1, context)))
    seconds = statistics.median(times)
    _show(
        {
            "context": context,
            "ms": 1e3 * seconds,
            "best_ms": 1e3 * min(times),
            "tokens_per_second": context / seconds,
        },
        as_json,
    )
