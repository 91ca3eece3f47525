"""What the commands that work on whole deployments have in common."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dgpp.checkpoint.resolve import hub_directory
from dgpp.cli.completion import complete_deployment, complete_rank
from dgpp.cli.settings import load_settings, load_site_alone, load_site_settings
from dgpp.cli.usual import usual_config
from dgpp.cluster.deployment import Access, Deployment, reach
from dgpp.cluster.installed import installed, program_of
from dgpp.cluster.node import RemoteNode
from dgpp.cluster.sync import Peer
from dgpp.config.constraints import refuse_open_door, refuse_unsupported
from dgpp.config.document import Override
from dgpp.config.resolve import site_whole
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError

DeploymentArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="deployment file; DGPP_CLUSTER_CONFIG names the usual one",
        autocompletion=complete_deployment,
    ),
]
BinOption = Annotated[
    str, typer.Option("--bin", help="dgpp's command on every node (default: this one's path)")
]
SshConfigOption = Annotated[
    str, typer.Option("--ssh-config", help="ssh's configuration file (default: the user's own)")
]
RankOption = Annotated[
    int | None, typer.Option("--rank", help="of this rank alone", autocompletion=complete_rank)
]


def open_deployment(
    config: Path | None,
    program: str = "",
    ssh_config: str = "",
    overrides: Sequence[Override] = (),
) -> Deployment:
    """The deployment that `config`, else the site, names; closed when this process ends. Raises
    ConfigError."""
    usual = config is None
    config = config or usual_config()
    settings = load_settings(config, overrides)
    deployment = Deployment(config, settings, access_by(program, ssh_config), usual=usual)
    atexit.register(deployment.close)
    return deployment


def refuse_start(deployment: Deployment, program: str) -> None:
    """Raise ConfigError where the settings are none that `dgpp up` would start. `program` is the
    option --bin."""
    settings = deployment.settings
    refuse_unsupported(settings, load_site_alone(), several_nodes=True)
    refuse_open_door(settings)
    releases = Path(settings.paths.release_dir).expanduser()
    if not settings.release or program or program_of(releases / settings.release).exists():
        return
    raise ConfigError(
        f"release: {settings.release} is not installed in {releases} (DGPP_RELEASE_DIR): "
        "`dgpp install` takes its archive, `dgpp releases` lists what is there: "
        f"{', '.join(installed(releases)) or 'nothing'}"
    )


def open_nodes(
    config: Path | None, program: str = "", ssh_config: str = ""
) -> tuple[Path, list[Peer], Settings]:
    """This machine's Hugging Face cache, the other nodes with theirs, and the settings: of the
    deployment `config`, else of all nodes that the site names. Raises ConfigError."""
    site = load_site_settings()
    settings = load_settings(config, ()) if config else site_whole(site)
    told = settings.node_env or ({},) * len(settings.nodes)
    hubs = [entries.get("HF_HUB_CACHE", "") for entries in told]
    nodes = reach(settings, access_by(program, ssh_config))
    for node in nodes:
        atexit.register(node.close)
    peers = [Peer(node, hubs[node.rank]) for node in nodes if isinstance(node, RemoteNode)]
    mine = {"HF_HUB_CACHE": hubs[0]} if hubs[0] else os.environ
    return hub_directory(mine), peers, settings


def access_by(program: str, ssh_config: str) -> Access:
    """How nodes are reached, as the options --bin and --ssh-config say. Raises ConfigError."""
    ssh = str(Path(ssh_config).expanduser()) if ssh_config else ""
    if ssh and not Path(ssh).is_file():
        raise ConfigError(
            f"--ssh-config: no such file: {ssh}; without the option ssh reads ~/.ssh/config"
        )
    return Access(program=program, ssh_config=ssh)


def say(line: str) -> None:
    """Progress goes where errors go: results are standard output's."""
    typer.echo(line, err=True)
