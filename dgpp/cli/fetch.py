"""`dgpp fetch`: bring a model to this machine before it is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Fetch a model.", no_args_is_help=True)


@app.callback()
def fetch() -> None:
    """Fetch a model into ~/.cache/dgpp/models (or DGPP_MODELS_DIR)."""


@app.command("demo")
def demo(
    models_dir: Annotated[
        Path | None,
        typer.Option(
            "--models-dir", envvar="DGPP_MODELS_DIR", help="Folder that holds fetched models."
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash every file of a model that is there already.")
    ] = False,
) -> None:
    """Fetch the demo model (93 MB down, 270 MB on disk) and print its folder."""
    from dgpp.checkpoint.demo import ensure_demo

    with progress_bar() as progress:
        path = ensure_demo(models_dir, progress, verify=verify)
    typer.echo(path)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A `progress(stage, done, total)` in bytes that draws on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield progress
