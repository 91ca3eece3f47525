"""`dgpp inspect`: what a checkpoint holds, without reading a weight."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dgpp.models.inspection import Inspection, Share

app = typer.Typer(add_completion=False)

GIB = 1 << 30


def _size(count: int) -> str:
    for unit, size in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def _line(share: "Share", what: str) -> None:
    counted = f"{share.parts} {what}, {share.tensors} tensors"
    typer.echo(f"  {share.name:<34} {counted:<34} {_size(share.bytes):>12}")


def _print(found: "Inspection") -> None:
    typer.echo(f"{found.family} ({found.model_type}) in {found.directory}")
    typer.echo(f"{found.tensors} tensors in {found.files} files, {_size(found.bytes)}")
    typer.echo(f"{found.kind}:")
    for share in found.formats:
        _line(share, "matrices")
    _line(found.vectors, "vectors")
    for note in found.notes:
        typer.echo(f"  {note}")
    if found.draft.parts:
        typer.echo("beside it:")
        _line(found.draft, "matrices and vectors")
    if found.ignored:
        typer.echo("ignored by name (N: any number):")
        for share in found.ignored:
            typer.echo(f"  {share.name:<69} {_size(share.bytes):>12}")
    typer.echo("weights in memory, per rank:")
    for rank in found.ranks:
        if rank.reason:
            typer.echo(f"  world {rank.world}: {rank.reason}")
            continue
        draft = f", draft layers {_size(rank.draft_bytes)} more" if rank.draft_bytes else ""
        typer.echo(f"  world {rank.world}: {_size(rank.bytes)}{draft}")


@app.command("inspect")
def inspect(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint directory or ORG/NAME.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Family, formats, tensors, what is ignored, bytes per rank; every tensor is accounted for.

    Exits 1 naming the first tensor or field of config.json that does not fit.
    """
    import msgspec

    from dgpp.checkpoint.checkpoint import Checkpoint
    from dgpp.checkpoint.resolve import resolve_model
    from dgpp.models.inspection import inspect_checkpoint

    found = inspect_checkpoint(Checkpoint(resolve_model(checkpoint)))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _print(found)
