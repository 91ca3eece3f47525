"""What commands take that read one deployment file: the file, and keys set beside it."""

from pathlib import Path
from typing import Annotated

import typer

from dgpp.cli.completion import complete_deployment

ConfigArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="deployment file (JSON), as in deploy/",
        autocompletion=complete_deployment,
    ),
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="PATH=VALUE", help="set any key; the value is JSON or text"),
]
