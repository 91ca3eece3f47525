"""Command-line flags made from the table of configuration keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from dgpp.cli.completion import complete_release
from dgpp.config.document import Override, parse_flag, parse_set
from dgpp.config.flags import flag_metavar, flag_names, flagged, off_flag, panel
from dgpp.config.key import Field, Kind
from dgpp.config.reference import default_text
from dgpp.errors import ConfigError


def help_text(field: Field) -> str:
    """What a key does, its unit, its default, and whether it is served today."""
    notes = [field.key.unit] if field.key.unit else []
    if field.choices:
        notes.append(" | ".join(field.choices))
    if not field.required and field.default not in (None, "", {}):
        notes.append(f"default {default_text(field)}")
    if not field.supported:
        notes.append("not supported yet")
    return field.key.doc + (f" ({', '.join(notes)})" if notes else "")


def _spellings(field: Field) -> list[tuple[str, bool | None]]:
    """Every flag of a key, and the value it stands for (None: the value follows the flag)."""
    if field.kind is Kind.BOOLEAN:
        return [*((name, True) for name in flag_names(field)), (off_flag(field), False)]
    return [(name, None) for name in flag_names(field)]


def _offered(field: Field) -> Callable[[str], list[str]] | None:
    """What the shell offers as the value of a key's flag."""
    if field.path == "release":
        return complete_release
    if not field.choices:
        return None

    def complete_choice(incomplete: str) -> list[str]:
        return [choice for choice in field.choices if choice.startswith(incomplete)]

    return complete_choice


def _parameter_name(flag: str) -> str:
    return "flag_" + flag.removeprefix("--").replace("-", "_")


def _parameters(field: Field) -> list[inspect.Parameter]:
    """One option per spelling; help shows the first alone, so that long names keep their room."""
    parameters = []
    for index, (flag, fixed) in enumerate(_spellings(field)):
        option = typer.Option(
            None,
            flag,
            help=help_text(field),
            metavar=flag_metavar(field) if fixed is None else None,
            rich_help_panel=panel(field),
            show_default=False,
            hidden=index > 0,
            autocompletion=_offered(field) if fixed is None else None,
        )
        parameter = inspect.Parameter(
            _parameter_name(flag),
            inspect.Parameter.KEYWORD_ONLY,
            default=option,
            annotation=str | None if fixed is None else bool | None,
        )
        parameters.append(parameter)
    return parameters


def collect(values: Mapping[str, Any], sets: list[str]) -> list[Override]:
    """The overrides of one command line: every `--set`, then the flags that were given.

    `values` holds parsed flags by parameter name and is None where a flag is absent.
    Raises ConfigError naming the flag.
    """
    overrides = [parse_set(assignment) for assignment in sets]
    for field in flagged():
        given = [
            (flag, fixed)
            for flag, fixed in _spellings(field)
            if values.get(_parameter_name(flag)) is not None
        ]
        if len(given) > 1:
            raise ConfigError(f"{given[0][0]} and {given[1][0]}: both set {field.path}")
        for flag, fixed in given:
            value = values[_parameter_name(flag)] if fixed is None else fixed
            overrides.append(parse_flag(field.path, flag, value))
    return overrides


def with_key_flags(function: Callable[..., int]) -> Callable[..., int]:
    """`function` with a flag for every key; it gets them as `overrides`, after its `sets`."""
    own = inspect.signature(function, eval_str=True).parameters
    kept = [parameter for name, parameter in own.items() if name != "overrides"]
    flags = [parameter for field in flagged() for parameter in _parameters(field)]
    parameters = kept + flags

    def call(**values: Any) -> int:
        mine = {parameter.name: values[parameter.name] for parameter in kept}
        return function(**mine, overrides=collect(values, values["sets"]))

    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    call.__annotations__ = annotations
    call.__doc__ = function.__doc__
    call.__name__ = function.__name__
    vars(call)["__signature__"] = inspect.Signature(
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    return call
