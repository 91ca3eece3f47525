"""Questions of a command to its user, each with a default; a script's answers do as well."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer

from dgpp.errors import ConfigError

Check = Callable[[str], object]
"""Raises ConfigError where an answer will not do."""


class Questions:
    """Asks on standard error and reads standard input; `unattended` takes every default."""

    def __init__(self, *, unattended: bool) -> None:
        self._unattended = unattended

    def ask(self, question: str, default: str, check: Check = str) -> str:
        """The answer, else `default`. One that `check` refuses is asked for again.

        Raises ConfigError where nobody answers, or a default is refused.
        """
        while True:
            answer = default if self._unattended else self._read(question, default)
            try:
                check(answer)
            except ConfigError as error:
                if self._unattended:
                    raise
                typer.echo(f"  {error}", err=True)
            else:
                return answer

    def choose(self, question: str, names: Sequence[str], default: str) -> str:
        """One of `names`, given by its number or name."""
        if not self._unattended:
            for number, name in enumerate(names, 1):
                typer.echo(f"  {number:2}  {name}", err=True)

        def named(answer: str) -> str:
            if answer.isdecimal() and 1 <= int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer not in names:
                raise ConfigError(f"{answer!r}: expected a number in 1..{len(names)}, or a name")
            return answer

        return named(self.ask(question, default, named))

    def _read(self, question: str, default: str) -> str:
        try:
            found = typer.prompt(question, default=default, err=True)
        except typer.Abort:
            if sys.stdin.isatty():
                raise
            raise ConfigError(
                f"{question}: standard input has ended; --yes takes the defaults"
            ) from None
        return str(found).strip()
