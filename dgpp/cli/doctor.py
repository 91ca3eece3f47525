"""`dgpp doctor`: whether the nodes of a deployment are fit to run it."""

from typing import Annotated

import typer

from dgpp.cli.cluster import (
    BinOption,
    DeploymentArgument,
    SshConfigOption,
    open_deployment,
    refuse_start,
)
from dgpp.cluster.up import examine
from dgpp.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command("doctor")
def doctor(
    config: DeploymentArgument = None,
    local_only: Annotated[bool, typer.Option("--local-only", help="this machine alone")] = False,
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """Look whether the nodes of a deployment are fit to run it, and say what mends what is not.

    Exit status: 0 fit, 1 not.
    """
    deployment = open_deployment(config, program, ssh_config)
    if local_only:
        deployment.nodes = deployment.nodes[:1]
    fit = True
    try:
        refuse_start(deployment, program)
    except ConfigError as error:
        typer.echo(f"{deployment.config}\n  error    {error}")
        fit = False
    for name, findings in examine(deployment).items():
        typer.echo(name)
        for finding in findings:
            typer.echo(f"  {finding.level:8} {finding.words}")
            fit &= finding.level != "error"
    return 0 if fit else 1
