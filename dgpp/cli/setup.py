"""`dgpp setup`: from bare nodes to a deployment that can be started."""

from __future__ import annotations

from typing import Annotated

import typer

from dgpp.cli.cluster import BinOption, SshConfigOption
from dgpp.cli.completion import complete_deployment, complete_node

app = typer.Typer(add_completion=False)


NodesOption = Annotated[
    str,
    typer.Option(
        "--nodes",
        metavar="'A B'",
        help="machines, this one first, as all of them call it",
        autocompletion=complete_node,
    ),
]
DeploymentOption = Annotated[
    str,
    typer.Option(
        "--deployment",
        metavar="NAME|FILE",
        help="a template of deploy/, or a deployment of your own",
        autocompletion=complete_deployment,
    ),
]
UserOption = Annotated[str, typer.Option("--ssh-user", help="login on the others")]
HubOption = Annotated[
    str, typer.Option("--hub-cache", metavar="DIR", help="folder of models on every node")
]
HttpPortOption = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, metavar="N", help="API port (http.port)")
]
JournalPortOption = Annotated[
    int | None, typer.Option("--journal-port", min=1, max=65535, metavar="N", help="ports.journal")
]
FabricPortOption = Annotated[
    int | None, typer.Option("--fabric-port", min=1, max=65535, metavar="N", help="ports.fabric")
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="ask nothing: what is known, else the defaults")
]
InstallOption = Annotated[
    bool, typer.Option(help="bring dgpp to nodes that have none, or another version")
]
FetchOption = Annotated[bool, typer.Option(help="fetch the model and bring it to all nodes")]
CheckOption = Annotated[
    bool, typer.Option("--check", help="look at the nodes and end; write nothing")
]
StartOption = Annotated[bool, typer.Option("--start", help="`dgpp up` when all is ready")]


@app.command("setup")
def setup(
    yes: YesOption = False,
    nodes: NodesOption = "",
    ssh_user: UserOption = "",
    deployment: DeploymentOption = "",
    hub_cache: HubOption = "",
    port: HttpPortOption = None,
    journal_port: JournalPortOption = None,
    fabric_port: FabricPortOption = None,
    install: InstallOption = True,
    fetch: FetchOption = True,
    check: CheckOption = False,
    start: StartOption = False,
    program: BinOption = "",
    ssh_config: SshConfigOption = "",
) -> int:
    """Set a site up: its nodes, their lanes, a deployment, its model.

    Asks what is not known yet, each question with a default, and keeps the answers
    in .env; a second run asks nothing and goes on where the first one stopped. Every
    node is looked at: ssh, dgpp, Python, driver, disk, locked memory, RoCE devices.
    The model is downloaded once and brought to all nodes.

    Exit status: 0 ready (with --start: serving), 1 not; it says what to do.
    """
    from dgpp.cli.wizard import Given, Wizard

    ports = {"http.port": port, "ports.journal": journal_port, "ports.fabric": fabric_port}
    given = Given(
        unattended=yes,
        nodes=nodes,
        ssh_user=ssh_user,
        deployment=deployment,
        hub_cache=hub_cache,
        ports={path: told for path, told in ports.items() if told},
        install=install,
        fetch=fetch,
        start=start,
        program=program,
        ssh_config=ssh_config,
    )
    wizard = Wizard(given)
    return wizard.look() if check else wizard.run()
