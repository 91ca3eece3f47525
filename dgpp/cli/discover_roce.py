"""`dgpp discover-roce`: which RDMA devices the ranks of this machine can speak over."""

from typing import Annotated

import msgspec
import typer

from dgpp.net.roce import chosen, devices, site_lines

app = typer.Typer(add_completion=False)


@app.command("discover-roce")
def discover_roce(
    as_json: Annotated[bool, typer.Option("--json", help="print what was found as JSON")] = False,
) -> int:
    """Print the RDMA devices of this machine and the .env lines that name those to be used.

    Exit status: 0 there are some, 1 none can be used.
    """
    found = devices()
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return 0
    for device in found:
        typer.echo(f"{device.name}: {device.state}, {device.rate}, {device.layer}")
        for gid in device.gids:
            said = f"  GID {gid.index}: {gid.host} ({gid.kind or 'no type'}, {gid.network or '?'})"
            typer.echo(said + ("" if gid.serves else " — not used"))
    for line in site_lines(chosen((), ())):
        typer.echo(line)
    return 0
