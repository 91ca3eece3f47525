"""What one configuration key is: its annotation and its `Key` metadata, read together.

The settings Structs are the one table of keys. Types, defaults, ranges, flags, help and
docs/configuration.md all come from them through `fields` and `leaves`.
"""

import enum
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec


class Key(msgspec.Struct, frozen=True):
    """Metadata of a key: `Annotated[int, Key("what it bounds", 1, 16, unit="tokens")]`.

    `low` and `high` are inclusive bounds (of each entry of a list), `above` an exclusive lower one;
    `also` lists numbers allowed outside them. `valid` and `expected` restrict a string. `now` lists
    the values that are served today beside the default (None: all of them). `entries` lists what
    an object may hold, each name with its values. `flag` replaces the derived flag name, "" means
    none. Keys with `shared` False stay out of the digest that ranks compare.
    """

    doc: str
    low: int | float | None = None
    high: int | float | None = None
    above: float | None = None
    also: tuple[int, ...] = ()
    unit: str = ""
    valid: Callable[[str], bool] | None = None
    expected: str = ""
    now: tuple[Any, ...] | None = None
    entries: Mapping[str, tuple[bool | str, ...]] | None = None
    flag: str | None = None
    group: str = ""
    shared: bool = True


LATER: tuple[Any, ...] = ()
"""As `Key.now`: only the default is served today."""


class Kind(enum.Enum):
    """The JSON shape that a key takes."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    CHOICE = "choice"
    STRINGS = "list of strings"
    INTEGERS = "list of integers"
    MAPS = "list of string maps"
    OBJECT = "object"
    SECTION = "section"


class Field(msgspec.Struct, frozen=True):
    """One key as the table gives it. `default` is NODEFAULT when the key is required."""

    path: str
    name: str
    kind: Kind
    key: Key
    default: Any
    optional: bool
    choices: tuple[str, ...] = ()
    section: type[msgspec.Struct] | None = None

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def supported(self) -> bool:
        """Whether any value but the default is served today."""
        return self.key.now is None or bool(self.key.now)


_SCALARS = {
    bool: Kind.BOOLEAN,
    int: Kind.INTEGER,
    float: Kind.NUMBER,
    str: Kind.STRING,
    tuple[str, ...]: Kind.STRINGS,
    tuple[int, ...]: Kind.INTEGERS,
    tuple[dict[str, str], ...]: Kind.MAPS,
    dict[str, Any]: Kind.OBJECT,
    dict[str, bool | str]: Kind.OBJECT,
}


def _kind(annotation: Any) -> tuple[Kind, bool, tuple[str, ...], type[msgspec.Struct] | None]:
    if typing.get_origin(annotation) is types.UnionType:
        inner = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        kind, _, choices, section = _kind(inner[0])
        return kind, True, choices, section
    if typing.get_origin(annotation) is typing.Literal:
        return Kind.CHOICE, False, typing.get_args(annotation), None
    if annotation in _SCALARS:
        return _SCALARS[annotation], False, (), None
    assert issubclass(annotation, msgspec.Struct), f"no kind for {annotation}"
    return Kind.SECTION, False, (), annotation


def _default(info: msgspec.structs.FieldInfo) -> Any:
    if info.default_factory is not msgspec.NODEFAULT:
        return info.default_factory()
    return info.default


@cache
def fields(section: type[msgspec.Struct], prefix: str = "") -> dict[str, Field]:
    """The keys of one settings Struct by name, in order; `prefix` is the section's path."""
    hints = typing.get_type_hints(section, include_extras=True)
    table = {}
    for info in msgspec.structs.fields(section):
        hint = hints[info.name]
        key = next(m for m in hint.__metadata__ if isinstance(m, Key))
        kind, optional, choices, inner = _kind(hint.__origin__)
        table[info.name] = Field(
            path=f"{prefix}.{info.name}" if prefix else info.name,
            name=info.name,
            kind=kind,
            key=key,
            default=_default(info),
            optional=optional,
            choices=choices,
            section=inner,
        )
    return table


@cache
def leaves(section: type[msgspec.Struct], prefix: str = "") -> dict[str, Field]:
    """Every key below `section` by dotted path; an optional section stands before its keys."""
    table = {}
    for field in fields(section, prefix).values():
        if field.section is None or field.optional:
            table[field.path] = field
        if field.section is not None:
            table.update(leaves(field.section, field.path))
    return table
