"""`dgpp plan`: what a rank of a deployment will hold in memory."""

from typing import Annotated

import typer

from dgpp.cli.arguments import ConfigArgument, SetOption
from dgpp.cli.flags import with_key_flags
from dgpp.cli.settings import load_settings
from dgpp.config.document import Override
from dgpp.errors import ConfigError

app = typer.Typer(add_completion=False)

GIB = 1 << 30


def plan(
    config: ConfigArgument,
    overrides: list[Override],
    sets: SetOption = [],  # noqa: B006 - typer copies it
    room: Annotated[
        float | None,
        typer.Option(help="check that it fits this many GiB", min=0.0, metavar="GIB"),
    ] = None,
    node: Annotated[
        str, typer.Option(help="plan for a node of this kind, and check that it fits: gb10")
    ] = "",
) -> int:
    """Print the memory plan of one rank, item by item, from config.json and settings alone.

    The model's config.json has to be here, or its facts beside CONFIG; weights, GPUs and the other
    ranks' nodes need not. Exits 1 where the plan exceeds --room or --node, naming the largest
    kv_capacity that fits. What `dgpp run` would refuse as not computed yet is planned all the same;
    the last line says so, and the exit status stays 0.
    """
    settings = load_settings(config, overrides)
    from actors import planning  # imports NumPy, which no other command should wait for

    if node and node not in planning.NODES:
        raise ConfigError(f"--node: {node!r}, known are {', '.join(planning.NODES)}")
    machine = planning.NODES.get(node, planning.Elsewhere())
    if room is not None:
        machine = machine.with_room(int(room * GIB))
    return planning.plan_elsewhere(settings, machine, config.parent)


app.command("plan")(with_key_flags(plan))
