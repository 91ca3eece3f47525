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
    found = installed(folder)
    for version in found:
        typer.echo(version)
    if not found:
        typer.echo(
            f"no release is installed in {folder} (DGPP_RELEASE_DIR): "
            "`dgpp install dgpp-VERSION.tar.zst` installs one",
            err=True,
        )
    return 0
