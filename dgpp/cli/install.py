"""`dgpp install`: unpack a release beside the others, from its archive alone."""

from pathlib import Path
from typing import Annotated

import typer

from dgpp.cli.settings import load_site_alone
from dgpp.cluster.release import install

app = typer.Typer(add_completion=False)


@app.command("install")
def install_release(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="dgpp-VERSION.tar.zst")],
) -> int:
    """Prove and unpack a release beside the others. Needs no network.

    It lands in DGPP_RELEASE_DIR/VERSION; `dgpp up --release VERSION` runs it.
    """
    releases = Path(load_site_alone().paths.release_dir).expanduser()
    version, program = install(archive, releases)
    typer.echo(f"{version}: {program}")
    return 0
