"""`dgpp status`: which ranks of a deployment run."""

from typing import Annotated

import msgspec
import typer

from dgpp.cli.cluster import BinOption, DeploymentArgument, SshConfigOption, open_deployment
from dgpp.cli.settings import load_site_alone
from dgpp.cluster.agent import answer
from dgpp.cluster.condition import conditions, of_record
from dgpp.cluster.messages import List
from dgpp.cluster.record import State

app = typer.Typer(add_completion=False)

NOT_RUNNING = 3
"""The status that service managers take for "not running"."""


@app.command("status")
def status(
    config: DeploymentArgument = None,
    every: Annotated[
        bool, typer.Option("--all", help="rank 0 of every deployment of this machine")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="as one JSON object")] = False,
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """Say which ranks of a deployment run.

    Exit status: 0 all ranks run, 3 not all do, 1 of one it is not known.
    """
    if every:
        return _all(as_json=as_json)
    deployment = open_deployment(config, program, ssh_config)
    found = conditions(deployment)
    if as_json:
        whole = {
            "deployment": deployment.place.deployment,
            "config": str(deployment.config),
            "ranks": found,
        }
        _print_json(whole)
    else:
        for rank in found:
            name = f"rank {rank.rank} at {rank.host}"
            typer.echo(rank.words if rank.error else f"{name}: {rank.words}")
    states = {rank.state for rank in found}
    if not states.isdisjoint({None, State.UNREADABLE}):
        return 1
    return 0 if states == {State.RUNNING} else NOT_RUNNING


def _all(*, as_json: bool) -> int:
    listed = answer(List(load_site_alone().paths.log_dir, 0)).deployments
    found = {
        name: msgspec.structs.replace(of_record(0, "localhost", state, record), error=unknown)
        for name, state, record, unknown in listed
    }
    if as_json:
        _print_json({"deployments": found})
        return 0
    for name, rank in found.items():
        typer.echo(f"{name}  {rank.config or '?'}: {rank.words}")
    if not found:
        typer.echo("no deployment was started here")
    return 0


def _print_json(whole: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode())
