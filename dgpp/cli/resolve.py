"""`dgpp resolve`: print the resolved settings of a deployment."""

import msgspec
import typer

from dgpp.cli.arguments import SetOption
from dgpp.cli.cluster import DeploymentArgument
from dgpp.cli.flags import with_key_flags
from dgpp.cli.settings import load_settings
from dgpp.cli.usual import usual_config
from dgpp.config.document import Override
from dgpp.config.resolve import to_document

app = typer.Typer(add_completion=False)


def resolve(
    overrides: list[Override],
    config: DeploymentArgument = None,
    sets: SetOption = [],  # noqa: B006 - typer copies it
) -> int:
    """Print the resolved JSON of a deployment: every key, with site and flags applied.

    Works for keys that this version does not serve yet. The output is a CONFIG too.
    """
    encoded = msgspec.json.encode(to_document(load_settings(config or usual_config(), overrides)))
    typer.echo(msgspec.json.format(encoded, indent=2))
    return 0


app.command("resolve")(with_key_flags(resolve))
