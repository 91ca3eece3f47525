"""`dgpp plan`: what a rank of a deployment will hold in memory."""

from typing import Annotated

import typer

from dgpp.cli.flags import with_key_flags
from dgpp.cli.settings import ConfigArgument, SetOption, load_settings
from dgpp.config.document import Override

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
) -> int:
    """Print the memory plan of one rank, item by item, from config.json and settings alone.

    The model's config.json has to be here; weights, GPUs and the other ranks' nodes need not.
    Exits 1 where the plan exceeds --room, naming the largest kv_capacity that fits.
    """
    settings = load_settings(config, overrides)
    from actors import launch  # imports NumPy, which no other command should wait for

    return launch.plan_elsewhere(settings, None if room is None else int(room * GIB))


app.command("plan")(with_key_flags(plan))
