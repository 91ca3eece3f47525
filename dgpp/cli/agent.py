"""`dgpp agent`: what a node does for the launcher; one request in, one answer out."""

import sys

import typer

from dgpp.cluster.agent import answer_bytes
from dgpp.cluster.messages import REQUEST_BYTES

app = typer.Typer(add_completion=False)


@app.command("agent")
def agent() -> int:
    """Read one request of the launcher from standard input and print the answer."""
    sys.stdout.buffer.write(answer_bytes(sys.stdin.buffer.read(REQUEST_BYTES + 1)))
    return 0
