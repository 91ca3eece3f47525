"""`dgpp top`: what a running server does, as it does it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from dgpp.cli.server_client import KeyOption, UrlOption
from dgpp.cli.usual import usual_url

if TYPE_CHECKING:
    from dgpp.cli.server_client import ServerClient
    from dgpp.cli.top_frame import Sample

app = typer.Typer(add_completion=False)


@app.command()
def top(
    url: UrlOption = "",
    api_key: KeyOption = "",
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.1, max=3600.0, help="Seconds between two looks."),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, of one interval, and end.")
    ] = False,
) -> None:
    """Watch a running server: requests, rates, memory of contexts, cache. Ctrl-C ends it.

    Exit status: 0 left or printed, 1 no server, 130 interrupted with --once.
    """
    from rich.console import Console
    from rich.live import Live

    from dgpp.cli.server_client import ClientError, ServerClient
    from dgpp.cli.top_frame import frame, lost

    client = ServerClient(url or usual_url(), api_key)
    console = Console()
    before = look(client)
    if once:
        time.sleep(interval)
        console.print(frame(client.url, before, look(client)))
        return
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval)
                try:
                    now = look(client)
                except ClientError as error:
                    live.update(lost(str(error)), refresh=True)
                else:
                    live.update(frame(client.url, before, now), refresh=True)
                    before = now
        except KeyboardInterrupt:
            return


def look(client: ServerClient) -> Sample:
    """What the server says now. Raises ClientError."""
    import msgspec

    from dgpp.cli.server_client import ClientError
    from dgpp.cli.top_frame import Sample, Standing, Written

    written = client.get("/metrics")
    health = client.get("/health/live")
    try:
        return Sample(
            time.monotonic(),
            msgspec.json.decode(health, type=Standing),
            msgspec.json.decode(written, type=Written),
        )
    except msgspec.DecodeError as error:
        raise ClientError(f"{client.url} says what this command does not read: {error}") from None
