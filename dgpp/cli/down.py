"""`dgpp down`: end a deployment in order on all its nodes."""

from typing import Annotated

import typer

from dgpp.cli.cluster import BinOption, DeploymentArgument, SshConfigOption, open_deployment, say
from dgpp.cluster.down import FIRST_S, bring_down

app = typer.Typer(add_completion=False)


@app.command("down")
def down(
    config: DeploymentArgument = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="kill rank 0 after so long (s)")
    ] = FIRST_S,
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """End a deployment in order on all its nodes, and compare what its ranks did.

    Exit status: 0 all ranks ended and did the same, 1 otherwise; 130, 143 or 129 stopped by a
    signal, the last line says what goes on.
    """
    deployment = open_deployment(config, program, ssh_config)
    return 0 if bring_down(deployment, say, timeout) else 1
