"""Subcommands that are imported when they run, so that `dgpp --help` stays instant."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from dgpp.cli.interrupts import raise_again

_COMPLETION = {"install_completion", "show_completion"}


class LazyCommand(TyperCommand):
    """Stands for the typer app `app` of `module` until somebody calls it or asks for its help."""

    def __init__(self, name: str, module: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help, help=short_help, add_help_option=False)
        self._module = module

    def make_context(self, info_name: str | None, *args: Any, **keywords: Any) -> Any:
        """The context of the real command, which from here on replaces this one."""
        command = self.load()
        raise_again()
        return command.make_context(info_name, *args, **keywords)

    def load(self) -> Any:
        """The real command."""
        app = import_module(self._module).app
        assert isinstance(app, typer.Typer)
        command = get_command(app)
        command.name = self.name
        command.params = [param for param in command.params if param.name not in _COMPLETION]
        return command
