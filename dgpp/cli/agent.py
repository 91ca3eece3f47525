"""`dgpp agent`: what a node does for the launcher; requests in, answers out, a line each."""

import sys

import typer

from dgpp.cluster.agent import serve

app = typer.Typer(add_completion=False)


@app.command("agent")
def agent() -> int:
    """Read the launcher's requests from standard input and print the answers."""
    serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0
