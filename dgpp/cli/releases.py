"""`dgpp releases`: which releases are installed here."""

from pathlib import Path

import typer

from dgpp.cli.settings import load_site_alone
from dgpp.cluster.installed import installed

app = typer.Typer(add_completion=False)


@app.command("releases")
def releases() -> int:
    """List the releases that are installed here, one a line."""
    folder = Path(load_site_alone().paths.release_dir).expanduser()
    for version in installed(folder):
        typer.echo(version)
    return 0
