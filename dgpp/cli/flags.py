"""Command-line flags made from the table of configuration keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from dgpp.config.document import Override, parse_flag, parse_set
from dgpp.config.flags import flag_metavar, flag_names, flagged, off_flag, panel
from dgpp.config.key import Field, Kind
from dgpp.config.reference import default_text


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


def _parameter_name(field: Field) -> str:
    return field.path.replace(".", "__")


def _parameter(field: Field) -> inspect.Parameter:
    names = flag_names(field)
    boolean = field.kind is Kind.BOOLEAN
    declarations = (f"{names[0]}/{off_flag(field)}", *names[1:]) if boolean else names
    option = typer.Option(
        None,
        *declarations,
        help=help_text(field),
        metavar=None if boolean else flag_metavar(field),
        rich_help_panel=panel(field),
        show_default=False,
    )
    return inspect.Parameter(
        _parameter_name(field),
        inspect.Parameter.KEYWORD_ONLY,
        default=option,
        annotation=bool | None if boolean else str | None,
    )


def collect(values: Mapping[str, Any], sets: list[str]) -> list[Override]:
    """The overrides of one command line: every `--set`, then the flags that were given.

    `values` holds parsed flags by parameter name and is None where a flag is absent.
    Raises ConfigError naming the flag.
    """
    overrides = [parse_set(assignment) for assignment in sets]
    for field in flagged():
        value = values.get(_parameter_name(field))
        if value is not None:
            flag = off_flag(field) if value is False else flag_names(field)[0]
            overrides.append(parse_flag(field.path, flag, value))
    return overrides


def with_key_flags(function: Callable[..., int]) -> Callable[..., int]:
    """`function` with a flag for every key; it gets them as `overrides`, after its `sets`."""
    own = inspect.signature(function, eval_str=True).parameters
    kept = [parameter for name, parameter in own.items() if name != "overrides"]
    parameters = kept + [_parameter(field) for field in flagged()]

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
