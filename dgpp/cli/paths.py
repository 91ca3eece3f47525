"""`dgpp paths`: where a deployment keeps its files."""

import msgspec
import typer

from dgpp.cli.cluster import DeploymentArgument, open_deployment

app = typer.Typer(add_completion=False)


@app.command("paths")
def paths(config: DeploymentArgument = None) -> int:
    """Print where a deployment keeps its logs, records and staged files, as JSON."""
    deployment = open_deployment(config)
    place = deployment.place
    ranks = [
        {
            "rank": node.rank,
            "host": node.host,
            "log": str(place.log(node.rank)),
            "operations": str(place.operations(node.rank)),
            "record": str(place.record(node.rank)),
        }
        for node in deployment.nodes
    ]
    found = {
        "deployment": place.deployment,
        "config": str(deployment.config),
        "logs": str(place.logs),
        "stage": str(place.stage),
        "ranks": ranks,
    }
    typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    return 0
