"""Ranks of a world take rank 0's settings; what belongs to a node stays its own."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dgpp.config.check import Reader
from dgpp.config.constraints import check_constraints
from dgpp.config.key import Field, fields
from dgpp.config.resolve import shared_document
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError


def encode_shared(settings: Settings) -> bytes:
    """The keys that all ranks must agree on, as JSON."""
    return msgspec.json.encode(shared_document(settings))


def adopt(own: Settings, given: bytes) -> tuple[Settings, list[str]]:
    """`own` with rank 0's shared keys, and the dotted paths of those that it said otherwise.

    Raises ConfigError where `given` is not what `encode_shared` of this version makes.
    """
    reader = Reader("settings of rank 0")
    try:
        document = msgspec.json.decode(given, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"settings of rank 0: {error}") from error
    theirs = reader.section(Settings, document)
    changed: list[str] = []
    adopted = _adopt(own, theirs, fields(Settings), changed)
    assert isinstance(adopted, Settings)
    check_constraints(adopted, reader)
    return adopted, changed


def _adopt(
    own: msgspec.Struct, theirs: msgspec.Struct, table: Mapping[str, Field], changed: list[str]
) -> msgspec.Struct:
    values: dict[str, Any] = {}
    for name, field in table.items():
        mine, other = getattr(own, name), getattr(theirs, name)
        if isinstance(mine, msgspec.Struct) and not field.optional:
            values[name] = _adopt(mine, other, fields(type(mine), field.path), changed)
        elif field.key.shared and mine != other:
            values[name] = other
            changed.append(field.path)
    return msgspec.structs.replace(own, **values)
