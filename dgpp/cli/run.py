"""`dgpp run`: serve one deployment."""

import os
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dgpp.cli.arguments import ConfigArgument, SetOption
from dgpp.cli.flags import with_key_flags
from dgpp.cli.no_swap import keep_out_of_swap
from dgpp.cli.settings import load_settings, load_site_alone
from dgpp.config.constraints import refuse_open_door, refuse_unsupported
from dgpp.config.document import Override
from dgpp.config.settings import Settings
from dgpp.config.version import version
from dgpp.errors import ConfigError
from dgpp.imports import uncollected
from dgpp.log import LEVELS, tell_where_on_request

app = typer.Typer(add_completion=False)


class Level(StrEnum):
    """Least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def prepare_environment(
    environ: MutableMapping[str, str], settings: Settings, level: str | None, rank: int = 0
) -> None:
    """Put the rank's node's local settings and the log level where child processes find them.

    Exported variables win. OPENBLAS_CORETYPE goes: it would pin BLAS to another machine's kernels.
    """
    for name, value in (settings.node_env[rank] if settings.node_env else {}).items():
        environ.setdefault(name, value)
    if level is not None:
        environ["DGPP_LOG_LEVEL"] = level
    environ["DGPP_LOG_LEVEL"] = environ.get("DGPP_LOG_LEVEL", "").lower() or "info"
    if environ["DGPP_LOG_LEVEL"] not in LEVELS:
        raise ConfigError(
            f"DGPP_LOG_LEVEL: expected one of {', '.join(LEVELS)}, got {environ['DGPP_LOG_LEVEL']}"
        )
    environ.pop("OPENBLAS_CORETYPE", None)


def run(
    config: ConfigArgument,
    overrides: list[Override],
    sets: SetOption = [],  # noqa: B006 - typer copies it
    memory_plan: Annotated[
        bool, typer.Option("--memory-plan", help="check that the memory suffices, then end")
    ] = False,
    rank: Annotated[
        int | None,
        typer.Option("--rank", help="run this rank alone; the others are started elsewhere"),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="log JSON lines")] = False,
    log_level: Annotated[
        Level | None, typer.Option("--log-level", help="least level that is logged (default info)")
    ] = None,
) -> int:
    """Serve a deployment over HTTP until Ctrl-C.

    Flags win over --set, then come the file, exported variables, .env.
    Every on/off flag --x has a twin --no-x.

    Exit status: 0 orderly, 1 start-up or configuration error,
    2 engine failure or forced stop, 3 released by another rank.
    """
    settings = load_settings(Path(config), overrides)
    refuse_unsupported(settings, load_site_alone(), several_nodes=rank is not None)
    refuse_open_door(settings)
    if settings.release not in ("", version()):
        raise ConfigError(
            f"release: {settings.release} is asked for, this is {version()}; dgpp up starts it"
        )
    if rank is not None and not 0 <= rank < settings.world_size:
        raise ConfigError(f"--rank: expected 0..{settings.world_size - 1}, got {rank}")
    prepare_environment(os.environ, settings, log_level and log_level.value, rank or 0)
    if not memory_plan:
        keep_out_of_swap(os.environ, sys.argv[1:])
    tell_where_on_request()
    with uncollected():  # imports NumPy, which must come after the environment is set
        from actors import launch, serve

    if memory_plan:
        return launch.memory_plan(settings)
    return serve.serve(settings, log_json=log_json, rank=rank)


app.command("run")(with_key_flags(run))
