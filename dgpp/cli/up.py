"""`dgpp up`: start a deployment on its nodes and return when it serves."""

import shlex
from typing import Annotated

import typer

from dgpp.cli.arguments import SetOption
from dgpp.cli.cluster import (
    BinOption,
    DeploymentArgument,
    SshConfigOption,
    open_deployment,
    refuse_start,
    say,
)
from dgpp.cli.flags import with_key_flags
from dgpp.cluster.up import Up, bring_up, stopped_by_down
from dgpp.config.document import Override
from dgpp.config.resolve import SITE_ONLY
from dgpp.errors import ConfigError

app = typer.Typer(add_completion=False)

FOUND_BY = {"nodes": "DGPP_NODES"} | {
    path: SITE_ONLY[path] for path in ("ssh_user", "paths.log_dir", "paths.stage_dir")
}
"""Where the other commands look for what was started, and the site's keys of that."""


def up(
    overrides: list[Override],
    config: DeploymentArgument = None,
    sets: SetOption = [],  # noqa: B006 - typer copies it
    replace: Annotated[
        bool, typer.Option("--replace", help="end what runs of this deployment first")
    ] = False,
    skip_preflight: Annotated[
        bool, typer.Option("--skip-preflight", help="start without looking at the nodes")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="give up after so long (s)")
    ] = 600,
    head_wrap: Annotated[
        str, typer.Option("--head-wrap", help="command that rank 0's is given to, as a profiler")
    ] = "",
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """Start a deployment on its nodes and return when it serves.

    Rank 0 runs here, the others where DGPP_NODES says, over the system's own ssh. A start that
    fails leaves nothing running.

    Exit status: 0 it serves, 1 it does not; 130, 143 or 129 stopped by a signal, the last line says
    what is left.
    """
    _refuse_hidden(overrides)
    deployment = open_deployment(config, program, ssh_config, overrides)
    refuse_start(deployment, program)
    wanted = Up(
        replace=replace,
        checks=not skip_preflight,
        timeout_s=timeout,
        wrap=tuple(shlex.split(head_wrap)),
    )
    typer.echo(stopped_by_down(bring_up(deployment, wanted, say), deployment))
    return 0


def _refuse_hidden(overrides: list[Override]) -> None:
    """Raise ConfigError where what is started could not be found again, nor ended."""
    for override in overrides:
        if override.path in FOUND_BY:
            raise ConfigError(
                f"{override.origin}: {override.path}: `dgpp down`, `status`, `logs` and `chat` "
                "would look elsewhere for what this starts; move it to .env as "
                f"{FOUND_BY[override.path]} (a file of nodes may say it)"
            )


app.command("up")(with_key_flags(up))
