"""`dgpp status`: which ranks of a deployment run."""

import time
from typing import Annotated

import typer

from dgpp.cli.cluster import BinOption, DeploymentArgument, SshConfigOption, open_deployment
from dgpp.cli.settings import load_site_alone
from dgpp.cluster.agent import answer
from dgpp.cluster.errors import ClusterError
from dgpp.cluster.messages import List, Look
from dgpp.cluster.record import ProcessRecord, State

app = typer.Typer(add_completion=False)

NOT_RUNNING = 3
"""The status that service managers take for "not running"."""


@app.command("status")
def status(
    config: DeploymentArgument = None,
    every: Annotated[
        bool, typer.Option("--all", help="rank 0 of every deployment of this machine")
    ] = False,
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """Say which ranks of a deployment run.

    Exit status: 0 all ranks run, 3 not all do, 1 a node could not be asked.
    """
    if every:
        return _all()
    deployment = open_deployment(config, program, ssh_config)
    states, reached = [], True
    for node in deployment.nodes:
        try:
            found = node.ask(Look(deployment.place, node.rank, -1))
        except ClusterError as error:
            typer.echo(f"{node.name}: {error}")
            reached = False
            continue
        states.append(found.state)
        typer.echo(f"{node.name}: {_said(found.state, found.record)}")
    if not reached:
        return 1
    return 0 if set(states) == {State.RUNNING} else NOT_RUNNING


def _said(state: State, record: ProcessRecord | None) -> str:
    if record is None:
        return state.value
    if state is not State.RUNNING:
        return f"{state.value} (was process {record.pid}, dgpp {record.version})"
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.started))
    return f"{state.value} since {since} (process {record.pid}, dgpp {record.version})"


def _all() -> int:
    found = answer(List(load_site_alone().paths.log_dir, 0)).deployments
    for name, state, record in found:
        config = record.config if record else "?"
        typer.echo(f"{name}  {config}: {_said(state, record)}")
    if not found:
        typer.echo("no deployment was started here")
    return 0
