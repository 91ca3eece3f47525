"""`dgpp bench`: what the engine does on this machine, beside what the machine could do."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dgpp.bench.drive import Driver
    from dgpp.bench.measure import DecodeFigure, PrefillFigure
    from dgpp.config.settings import Settings
    from dgpp.models.plan import MemoryPlan
    from kernels_numba.rates import Yardstick

app = typer.Typer(help="Measure decode and prefill.", no_args_is_help=True)

Config = Annotated[Path | None, typer.Option(help="Deployment file (JSON).")]
Checkpoint = Annotated[
    str | None, typer.Option(help="Instead: checkpoint directory, ORG/NAME, or a config.json.")
]
Contexts = Annotated[str, typer.Option(help="Tokens in the cache, or to read: 512,8192.")]
Batches = Annotated[str, typer.Option(help="Rows per step: 1,8,16.")]
Load = Annotated[str | None, typer.Option(help="checkpoint, or dummy: random weights.")]
Backend = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Layers = Annotated[
    int | None, typer.Option(help="Only the model's first layers, with --load dummy.", min=1)
]
Threads = Annotated[int | None, typer.Option(help="Kernel threads of the CPU backend.", min=1)]
Runs = Annotated[int, typer.Option(help="Timed runs of each figure.", min=1)]
Steps = Annotated[int, typer.Option(help="Decode steps of a run.", min=1, max=1 << 30)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, slots=True)
class _Wanted:
    config: Path | None
    checkpoint: str | None
    layers: int | None
    told: dict[str, str | int | None]


@dataclass(frozen=True, slots=True)
class _Bench:
    """A loaded engine, and what the machine does per second for each context (bytes for decode,
    FLOP for prefill, None where that cannot be measured). `about` goes into the JSON object."""

    driver: Driver
    plan: MemoryPlan
    rates: dict[int, float | None]
    about: dict[str, Any]


def _settings(wanted: _Wanted, batch: int, tokens: int) -> Settings:
    from dgpp.bench.setup import overrides
    from dgpp.cli.settings import load_settings
    from dgpp.config.resolve import resolve
    from dgpp.config.site import parse_site
    from dgpp.errors import ConfigError

    laid = overrides(batch, tokens, wanted.told)
    if (wanted.config is None) == (wanted.checkpoint is None):
        raise ConfigError("give either --config FILE or --checkpoint DIRECTORY")
    if wanted.config is not None:
        return load_settings(wanted.config, laid)
    document = {"model": wanted.checkpoint, "world_size": 1}
    return resolve(document, "--checkpoint", site=parse_site({}, ""), overrides=laid)


def _settle_blas() -> None:
    """Before NumPy loads: one thread a product, as BLAS threads would fight the kernels' own, and
    the kernels of this machine, not of another."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.pop("OPENBLAS_CORETYPE", None)


@contextmanager
def _told() -> Iterator[None]:
    """What the engine logs inside goes to standard error: the figures alone to standard output."""
    log, handler = logging.getLogger("dgpp"), logging.StreamHandler()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextmanager
def _engine(
    wanted: _Wanted, contexts: tuple[int, ...], batch: int, steps: int = 0
) -> Iterator[_Bench]:
    """The deployment's engine, loaded as `dgpp run` loads it; `steps` decode steps are to follow a
    context, 0 for prefill."""
    from actors.engine import build_engine
    from actors.launch import deploy, model_files
    from dgpp.bench.drive import Driver
    from dgpp.bench.machine import yardstick
    from dgpp.bench.measure import LEAST_STEPS
    from dgpp.bench.setup import blamed, cut_model, require_positions
    from dgpp.checkpoint.json_file import named, read_json
    from dgpp.engine.model_engine import ModelEngine
    from dgpp.errors import ConfigError
    from dgpp.models.forms import model_forms
    from dgpp.models.registry import family_of

    longest = max(contexts) + steps + 1
    with cut_model(_settings(wanted, batch, longest), wanted.layers) as settings:
        if settings.engine.backend == "scripted":
            raise ConfigError("engine.backend: scripted computes nothing that could be measured")
        file = model_files(settings).config
        config = read_json(file)
        with named(file):
            parsed = family_of(config).settle(config, model_forms(settings.engine))
        least = min(steps, LEAST_STEPS)
        require_positions(parsed.max_position_embeddings, contexts, steps, least)
        with _told(), blamed(contexts, batch, steps, wanted.layers):
            boot, plan, room = deploy(settings, log_json=False)
        assert plan is not None
        assert room is not None
        machine = yardstick(boot.backend, threads=boot.threads, device=boot.device)
        rates = _rates(machine, contexts, decode=steps > 0)
        with _told():
            engine = build_engine(boot)
        assert isinstance(engine, ModelEngine)
        about = {
            "model": wanted.checkpoint or settings.model,
            "layers": wanted.layers,
            "load": settings.engine.load,
            "backend": boot.backend,
            "place": room.name,
            "yardstick": machine.bandwidth_name if steps else machine.product_name,
        }
        yield _Bench(Driver(engine), plan, rates, about)


def _rates(
    machine: Yardstick, contexts: tuple[int, ...], *, decode: bool
) -> dict[int, float | None]:
    if decode:
        return dict.fromkeys(contexts, machine.bandwidth())
    return {tokens: machine.product(tokens) for tokens in contexts}


def _show(bench: _Bench, table: list[str], figures: list[Any], *, as_json: bool) -> None:
    import msgspec

    about = bench.about
    if as_json:
        found = [msgspec.to_builtins(figure) for figure in figures]
        typer.echo(json.dumps({**about, "figures": found}))
        return
    layers = f", first {about['layers']} layers" if about["layers"] else ""
    typer.echo(f"{about['model']}{layers} ({about['load']}), {about['backend']} {about['place']}")
    rates = ", ".join(
        sorted({"not measured" if r is None else f"{r / 1e12:.4g}" for r in bench.rates.values()})
    )
    typer.echo(f"yardstick: {about['yardstick']}, T/s: {rates}")
    for line in table:
        typer.echo(line)


def _decode_table(figures: list[DecodeFigure], name: str) -> list[str]:
    from dgpp.bench.table import aligned, share

    header = ["context", "batch", "ms/step", "min", "max", "tok/s", "experts", "GB", f"of {name}"]
    return aligned(
        header,
        [
            [
                str(f.context),
                str(f.batch),
                f"{f.ms:.3f}",
                f"{f.ms_min:.3f}",
                f"{f.ms_max:.3f}",
                f"{f.tokens_per_second:.1f}",
                f"{f.experts:.1f}" if f.experts else "-",
                f"{f.read_bytes / 1e9:.3f}",
                share(f.of_bandwidth),
            ]
            for f in figures
        ],
    )


def _prefill_table(figures: list[PrefillFigure]) -> list[str]:
    from dgpp.bench.table import aligned, share

    header = ["tokens", "ms", "min", "max", "tok/s", "TFLOP/s", "of product"]
    return aligned(
        header,
        [
            [
                str(f.tokens),
                f"{f.ms:.1f}",
                f"{f.ms_min:.1f}",
                f"{f.ms_max:.1f}",
                f"{f.tokens_per_second:.0f}",
                f"{f.flops_per_second / 1e12:.3g}",
                share(f.of_product),
            ]
            for f in figures
        ],
    )


@app.command("decode")
def bench_decode(
    config: Config = None,
    checkpoint: Checkpoint = None,
    context: Contexts = "64",
    batch: Batches = "1",
    load: Load = None,
    backend: Backend = None,
    layers: Layers = None,
    threads: Threads = None,
    runs: Runs = 5,
    steps: Steps = 24,
    as_json: Json = False,
) -> None:
    """Greedy decode steps of the deployment's engine, as it serves them.

    GB is what a step must read: weights but the embedding and the experts not picked, and the
    cached context. The last column is that over the step's time, as a share of the bandwidth
    measured in the same run.
    """
    _settle_blas()
    from dgpp.bench.measure import LEAST_STEPS, Decode
    from dgpp.cli.numbers import most_of, whole_numbers

    contexts = whole_numbers("--context", context)
    batches = whole_numbers("--batch", batch, most_of("engine.max_concurrency"))
    told = {"load": load, "backend": backend, "threads": threads}
    wanted = _Wanted(config, checkpoint, layers, told)
    with _engine(wanted, contexts, max(batches), max(steps, LEAST_STEPS)) as bench:
        decode = Decode(bench.driver, bench.plan, max(contexts), max(batches))
        figures = [
            decode.at(tokens, rows, steps=steps, runs=runs, bandwidth=bench.rates[tokens] or 0.0)
            for tokens in contexts
            for rows in batches
        ]
        table = _decode_table(figures, bench.about["yardstick"])
        _show(bench, table, figures, as_json=as_json)


@app.command("prefill")
def bench_prefill(
    config: Config = None,
    checkpoint: Checkpoint = None,
    context: Contexts = "512",
    load: Load = None,
    backend: Backend = None,
    layers: Layers = None,
    threads: Threads = None,
    runs: Runs = 5,
    as_json: Json = False,
) -> None:
    """Read one prompt of each length, in the chunks in which it is served.

    FLOPs are those of products with weights alone (experts by their share); the last column is
    their rate as a share of a plain matrix product's, measured in the same run.
    """
    _settle_blas()
    from dgpp.bench.measure import measure_prefill
    from dgpp.cli.numbers import whole_numbers

    contexts = whole_numbers("--context", context)
    told = {"load": load, "backend": backend, "threads": threads}
    with _engine(_Wanted(config, checkpoint, layers, told), contexts, 1) as bench:
        figures = [
            measure_prefill(
                bench.driver, bench.plan, tokens, runs=runs, product=bench.rates[tokens]
            )
            for tokens in contexts
        ]
        _show(bench, _prefill_table(figures), figures, as_json=as_json)
