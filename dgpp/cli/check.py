"""`dgpp check`: does a checkpoint compute what its reference computed?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from dgpp.check.drafter import DrafterReport
    from dgpp.check.expected import Tolerances
    from dgpp.check.report import ForwardReport
    from dgpp.models.forms import ModelForms
    from kernels_numba.gpu.device import Device

TablesOption = Annotated[
    Path | None,
    typer.Option(help="Checkpoint directory that holds the n-gram table, where it is another."),
]
ToleranceOption = Annotated[
    float | None, typer.Option(help="Absolute tolerance where no index.json states one.", min=0.0)
]
RuleOption = Annotated[
    str, typer.Option(help="What is near enough: float32, bf16, or auto: as the backend computes.")
]
DenseOption = Annotated[str, typer.Option(help="Dense bf16 weights as: checkpoint or fp8.")]
Bf16Option = Annotated[str, typer.Option(help="bf16 weights as: checkpoint or bf12.")]
KvOption = Annotated[str, typer.Option(help="Cached context as: bf16, fp8 or fp4.")]
TargetOption = Annotated[
    Path | None, typer.Option(help="Checkpoint directory of a block drafter's target.")
]
DevicesOption = Annotated[
    str,
    typer.Option(help="CUDA device of each rank: 1,0. Else a rank's number, as far as there are."),
]
RULES = {"cpu": "float32", "cuda": "bf16"}

app = typer.Typer(help="Compare a model with reference values.", no_args_is_help=True)


@app.callback()
def check() -> None:
    """Compare a model with reference values."""


def _print_report(report: ForwardReport) -> None:
    where = f"{report.family} {report.variant} on {report.backend}, world {report.world}"
    typer.echo(f"{where}, {report.rule} rule")
    _print_values(report)
    _print_end(report)


def _print_values(report: ForwardReport) -> None:
    for layer in report.layers:
        name = "embedding" if layer.layer < 0 else f"layer {layer.layer}"
        change = "" if layer.of_change is None else f", {layer.of_change:.4f} of its change"
        failed = "" if layer.ok else "  FAIL"
        typer.echo(f"  {name:<12} max |error| {layer.max_abs:.3g}{change}{failed}")
    mean = f"max |error| {report.logits_max_abs:.3g}, mean {report.logits_mean_abs:.3g}"
    typer.echo(f"  {'logits':<12} {mean}, best token equal in {report.argmax_agree:.3f}")
    typer.echo(f"  {'greedy':<12} {report.greedy_equal} of {report.greedy_total} tokens equal")
    typer.echo(f"  {'router':<12} {'equal' if report.router_equal else 'DIFFERS'}")
    if not report.selected_equal:
        typer.echo(f"  {'selection':<12} DIFFERS")
    for flip in report.flips:
        kept = "allowed" if flip.allowed else "FAIL"
        typer.echo(f"  flip         layer {flip.layer} row {flip.row}: gap {flip.gap:.3g}, {kept}")
    if report.mtp_max_abs is not None:
        typer.echo(f"  {'draft':<12} max |error| {report.mtp_max_abs:.3g}")
    if report.blocks is not None:
        blocks = report.blocks
        errors = f"max |error| {blocks.logits_max_abs:.3g}, {blocks.confidence_max_abs:.3g}"
        typer.echo(f"  {'blocks':<12} {errors} of confidence")
        typer.echo(f"  {'':<12} {blocks.equal} of {blocks.total} tokens equal")
    if report.bounded is not None:
        typer.echo("with bounded prefill:")
        _print_values(report.bounded)
    if report.rounded is not None:
        typer.echo("with rounded cache rows:")
        _print_values(report.rounded)


def _print_end(report: ForwardReport | DrafterReport) -> None:
    for name, reason in report.not_compared.items():
        typer.echo(f"  {name} was not compared: {reason}")
    for failure in report.failures:
        typer.echo(f"  FAIL {failure}")
    typer.echo("ok" if report.ok else "NOT within tolerance")


def _print_drafter(report: DrafterReport) -> None:
    typer.echo(f"{report.family} {report.variant} on {report.backend}, world {report.world}")
    errors = {
        "taps": report.taps_max_abs,
        "block": report.hidden_max_abs,
        "candidates": report.candidate_logits_max_abs,
        "path scores": report.scores_max_abs,
    }
    for name, error in errors.items():
        typer.echo(f"  {name:<12} max |error| {error:.3g}")
    typer.echo(f"  {'drafts':<12} {report.drafts_equal} of {report.drafts_total} tokens equal")
    _print_end(report)


def _print_any(report: ForwardReport | DrafterReport, *, as_json: bool) -> None:
    import msgspec

    from dgpp.check.drafter import DrafterReport

    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    elif isinstance(report, DrafterReport):
        _print_drafter(report)
    else:
        _print_report(report)


def _refuse(message: str) -> NoReturn:
    from dgpp.errors import ConfigError

    raise ConfigError(message)


def _one_of(flag: str, value: str, *known: str) -> None:
    if value not in known:
        _refuse(f"{flag}: {value!r} is not one of {', '.join(known)}")


def _tolerances(expected: Path, tolerance: float | None) -> Tolerances:
    """What is near enough to the values in `expected`: as stated, else within `tolerance`."""
    from dgpp.check.expected import require_archive, stated_tolerances, uniform_tolerances

    if not expected.is_file():
        _refuse(f"--expected: {expected}: there is no such file")
    require_archive(expected, "--expected: ")
    stated = stated_tolerances(expected)
    if stated is None and tolerance is None:
        _refuse(f"{expected}: no index.json states a tolerance; give --tolerance")
    if stated is not None and tolerance is not None:
        said = f"--tolerance {tolerance:g}: not used, an index.json states what is near enough"
        typer.echo(f"warning: {said}", err=True)
    return stated or uniform_tolerances(tolerance or 0.0)


def _require_folders(checkpoint: Path, target: Path | None, tables: Path | None) -> None:
    """Each is a checkpoint's folder, where it is told."""
    told = {"--checkpoint": checkpoint, "--target": target, "--ngram-table-model": tables}
    for flag, folder in told.items():
        if folder is None:
            continue
        if not folder.is_dir():
            _refuse(f"{flag}: {folder}: not a folder: name that of a checkpoint")
        if not (folder / "config.json").is_file():
            _refuse(f"{flag}: {folder}: no config.json in it: name the folder of a checkpoint")


def _devices(text: str) -> tuple[int, ...]:
    from dgpp.cli.numbers import most_of, numbers

    return numbers("--devices", text, 0, most_of("engine.devices")) if text else ()


def _backend(
    wanted: str,
    threads: int,
    model: Path,
    world: int,
    devices: tuple[int, ...],
    forms: ModelForms,
) -> str:
    """The backend that `wanted` comes to for the checkpoint `model`, where the ranks' GPUs are
    `devices`; of the CPU's, a warning where it has not so many threads, or a GPU is not taken."""
    from dgpp.checkpoint.json_file import read_json
    from dgpp.engine.backends import choose_backend, unused
    from dgpp.models.registry import family_of

    def lacks(found: Device | None) -> tuple[str, ...]:
        config = read_json(model / "config.json")
        return family_of(config).lacks(config, world, found)

    def require(found: Device | None) -> None:
        for missed in lacks(found):
            _refuse(f"--backend: {missed}; take cpu")
        for key, value in forms.unread("cuda").items():
            _refuse(f"--{key.replace('_', '-')}: {value} is not on the cuda backend yet; take cpu")

    if wanted == "cuda":
        # A device is asked for only where one could compute this.
        require(None)
    choice = choose_backend(wanted, next(iter(devices), 0), lacks)
    chosen = choice.backend
    if choice.device is not None:
        require(choice.device)
    if choice.why:
        typer.echo(f"warning: --backend auto takes the CPU: {choice.why}", err=True)
    if said := unused(chosen, "--devices", devices):
        typer.echo(f"warning: {said}", err=True)
    if chosen == "cpu":
        from kernels_numba.jit import config

        if threads > (most := config.NUMBA_NUM_THREADS):
            said = f"warning: --threads {threads}: this process may use {most}, and does"
            typer.echo(said, err=True)
    return chosen


def _forms(dense_weights: str, bf16_weights: str, kv_dtype: str) -> ModelForms:
    from dgpp.models.forms import ModelForms

    _one_of("--dense-weights", dense_weights, "checkpoint", "fp8")
    _one_of("--bf16-weights", bf16_weights, "checkpoint", "bf12")
    _one_of("--kv-dtype", kv_dtype, "bf16", "fp8", "fp4")
    return ModelForms(dense_weights=dense_weights, bf16_weights=bf16_weights, kv_dtype=kv_dtype)


@app.command("forward")
def check_forward(
    checkpoint: Annotated[Path, typer.Option(help="Checkpoint directory.")],
    expected: Annotated[Path, typer.Option(help="Reference values (.npz).")],
    backend: Annotated[str, typer.Option(help="Backend to run on: cpu, cuda or auto.")] = "cpu",
    tolerance: ToleranceOption = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Feed each layer the reference's own input.")
    ] = False,
    rule: RuleOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    threads: Annotated[int, typer.Option(help="Kernel threads of each rank.", min=1)] = 2,
    world: Annotated[int, typer.Option(help="Ranks, all on this host.", min=1, max=64)] = 1,
    embed_sharding: Annotated[
        str, typer.Option(help="Embedding on each rank: replicated or vocab.")
    ] = "replicated",
    ngram_table: Annotated[
        str, typer.Option(help="N-gram tables in memory or on disk: resident or mmap.")
    ] = "resident",
    ngram_table_model: TablesOption = None,
    dense_weights: DenseOption = "checkpoint",
    bf16_weights: Bf16Option = "checkpoint",
    kv_dtype: KvOption = "bf16",
    target: TargetOption = None,
    devices: DevicesOption = "",
) -> None:
    """Per-layer and logits error, greedy, router and draft agreement; exit 1 beyond tolerance."""
    from dgpp.check.drafter import open_and_check_drafter
    from dgpp.check.expected import stated_tables
    from dgpp.check.forward import CheckOptions, open_and_check

    _one_of("--backend", backend, "auto", "cpu", "cuda")
    _one_of("--rule", rule, "auto", "float32", "bf16")
    _one_of("--embed-sharding", embed_sharding, "replicated", "vocab")
    _one_of("--ngram-table", ngram_table, "resident", "mmap")
    forms = _forms(dense_weights, bf16_weights, kv_dtype)
    tolerances = _tolerances(expected, tolerance)
    _require_folders(checkpoint, target, ngram_table_model)
    named = _devices(devices)
    chosen = _backend(backend, threads, target or checkpoint, world, named, forms)
    options = CheckOptions(
        threads=threads,
        per_layer=per_layer,
        backend=chosen,
        rule=RULES[chosen] if rule == "auto" else rule,
        world=world,
        devices=named,
        embed_sharding=embed_sharding,
        mapped=ngram_table == "mmap",
        tables=ngram_table_model or stated_tables(expected),
        forms=forms,
    )
    report: ForwardReport | DrafterReport
    if target is None:
        report = open_and_check(checkpoint, expected, tolerances, options)
    else:
        report = open_and_check_drafter(checkpoint, target, expected, tolerances, options)
    _print_any(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(1)
