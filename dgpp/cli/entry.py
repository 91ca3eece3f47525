"""What `dgpp` runs first: the launcher's agent, or the command line."""

from __future__ import annotations

import sys

from dgpp.cli.interrupts import end_at_once, raise_again


def main() -> int:
    """Run this process's command line and return its exit status.

    `dgpp agent` starts once for every node that a command asks, so it waits for nothing that it has
    no use for: what reads options takes as long to load as all the rest.
    """
    end_at_once()
    if sys.argv[1:] == ["agent"]:
        from dgpp.cluster.agent import serve

        raise_again()
        serve(sys.stdin.buffer, sys.stdout.buffer)
        return 0
    from dgpp.cli.main import main as run_command_line

    return run_command_line()
