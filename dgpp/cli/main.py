"""The `dgpp` command: its subcommands by name, and one clean line for every error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dgpp.cli.lazy import LazyCommand
from dgpp.errors import DgppError

COMMANDS = (
    ("run", "dgpp.cli.run", "Serve a deployment over HTTP."),
    ("setup", "dgpp.cli.setup", "Set a site up, step by step."),
    ("fetch", "dgpp.cli.fetch", "Fetch a model and bring it to the nodes."),
    ("chat", "dgpp.cli.chat", "Talk to a running server."),
    ("top", "dgpp.cli.top", "Watch a running server."),
    ("check", "dgpp.cli.check", "Check a checkpoint against reference values."),
    ("plan", "dgpp.cli.plan", "Print a deployment's memory plan."),
    ("inspect", "dgpp.cli.inspect_checkpoint", "Say what a checkpoint holds."),
    ("bench", "dgpp.cli.bench", "Measure speed."),
    ("up", "dgpp.cli.up", "Start a deployment on its nodes."),
    ("down", "dgpp.cli.down", "End a deployment in order."),
    ("status", "dgpp.cli.status", "Say which ranks run."),
    ("logs", "dgpp.cli.logs", "Print the logs of all ranks as one."),
    ("doctor", "dgpp.cli.doctor", "Look whether nodes are fit."),
    ("signal", "dgpp.cli.signal_ranks", "Signal the ranks of a deployment."),
    ("paths", "dgpp.cli.paths", "Print where a deployment keeps its files."),
    ("discover-roce", "dgpp.cli.discover_roce", "Find this machine's RDMA devices."),
    ("install", "dgpp.cli.install", "Install a release."),
    ("releases", "dgpp.cli.releases", "List the installed releases."),
    ("resolve", "dgpp.cli.resolve", "Print the resolved settings of a deployment."),
)

_INTERRUPTED = 130
# typer carries click's errors under a name that changed between versions; this one is public.
_UsageError: type[Exception] = next(
    c
    for c in typer.BadParameter.__mro__
    if issubclass(c, Exception) and c.__name__ == "ClickException"
)

app = typer.Typer(
    name="dgpp",
    help="An inference server for large language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dgpp.config.version import version

        typer.echo(version())
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """An inference server for large language models."""


def command() -> Any:
    """The whole command line as one group; subcommands load when they run."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name, module, short_help in COMMANDS:
        group.add_command(LazyCommand(name, module, short_help))
    return group


def _fail(message: str) -> None:
    sys.stderr.write(f"dgpp: error: {' '.join(message.split())}\n")


def leave(error: DgppError) -> None:
    """End this process at once, whatever its threads do, as `main` ends for `error`."""
    _fail(str(error))
    sys.stderr.flush()
    os._exit(error.exit_status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's) and return its exit status.

    Configuration and flag errors are 1; a DgppError has its own status; Ctrl-C is 130.
    """
    try:
        status = command().main(arguments, prog_name="dgpp", standalone_mode=False)
    except DgppError as error:
        _fail(str(error))
        return error.exit_status
    except _UsageError as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            _fail(getattr(error, "format_message", error.__str__)())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    return status if isinstance(status, int) else 0
