"""`dgpp logs`: the logs of a deployment's ranks as one."""

from typing import Annotated

import typer

from dgpp.cli.cluster import (
    BinOption,
    DeploymentArgument,
    RankOption,
    SshConfigOption,
    open_deployment,
    say,
)
from dgpp.cluster.logs import LogReader
from dgpp.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command("logs")
def logs(
    config: DeploymentArgument = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on with what is said from now on")
    ] = False,
    rank: RankOption = None,
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """Print the logs of a deployment's ranks in the order of time, the last 256 KiB of each.

    A node that does not answer is named, the others' logs are printed. Exit status: 0 all were
    read, 1 one was not.
    """
    deployment = open_deployment(config, program, ssh_config)
    nodes = [node for node in deployment.nodes if rank in (None, node.rank)]
    if not nodes:
        raise ConfigError(f"--rank: expected 0..{len(deployment.nodes) - 1}, got {rank}")
    reader = LogReader(deployment, nodes, say)
    named = len(nodes) > 1
    for line in reader.follow(named=named) if follow else reader.lines(named=named):
        typer.echo(line)
    return 1 if reader.lost else 0
