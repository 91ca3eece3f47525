"""`dgpp signal`: send a signal to the ranks of a deployment."""

import signal as signals
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
from dgpp.cluster.messages import Signal
from dgpp.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command("signal")
def send(
    name: Annotated[str, typer.Argument(metavar="SIGNAL", help="INT, TERM, KILL, USR1, …")],
    config: DeploymentArgument = None,
    rank: RankOption = None,
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """Send a signal to exactly the processes that `dgpp up` started.

    Exit status: 0 sent to all, 1 not.
    """
    try:
        number = signals.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError:
        raise ConfigError(f"SIGNAL: no signal is called {name}") from None
    deployment = open_deployment(config, program, ssh_config)
    sent = True
    for node in deployment.nodes:
        if rank in (None, node.rank):
            done = node.ask(Signal(deployment.place, node.rank, number)).done
            say(f"{node.name}: " + (f"was sent {number.name}" if done else "does not run"))
            sent &= done
    return 0 if sent else 1
