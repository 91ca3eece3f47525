"""What the commands that work on whole deployments have in common."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dgpp.cli.settings import load_settings, load_site_settings
from dgpp.cluster.deployment import Access, Deployment
from dgpp.config.document import Override
from dgpp.errors import ConfigError

DeploymentArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]", help="deployment file; DGPP_CLUSTER_CONFIG names the usual one"
    ),
]
BinOption = Annotated[
    str, typer.Option("--bin", help="dgpp's command on every node (default: this one's path)")
]
SshConfigOption = Annotated[
    str, typer.Option("--ssh-config", help="ssh's configuration file (default: the user's own)")
]
RankOption = Annotated[int | None, typer.Option("--rank", help="of this rank alone")]


def open_deployment(
    config: Path | None,
    program: str = "",
    ssh_config: str = "",
    overrides: Sequence[Override] = (),
) -> Deployment:
    """The deployment that `config`, else the site, names; closed when this process ends. Raises
    ConfigError."""
    if config is None:
        usual = load_site_settings().DGPP_CLUSTER_CONFIG
        if not usual:
            raise ConfigError("no CONFIG given, and DGPP_CLUSTER_CONFIG names none")
        config = Path(usual).expanduser()
    ssh = str(Path(ssh_config).expanduser()) if ssh_config else ""
    access = Access(program=program, ssh_config=ssh)
    deployment = Deployment(config, load_settings(config, overrides), access)
    atexit.register(deployment.close)
    return deployment


def say(line: str) -> None:
    """Progress goes where errors go: results are standard output's."""
    typer.echo(line, err=True)
