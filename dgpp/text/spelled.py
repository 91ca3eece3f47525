"""JSON values that remember how they were written.

A model that wrote 1.50 must find 1.50 in its history: the prompt of the next turn then begins with
the very tokens that it produced, and what was computed for them can be used again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

_SPACE = " \t\r\n"
_decoder = json.JSONDecoder()


@runtime_checkable
class Spelled(Protocol):
    """A value with the JSON text that it was read from."""

    spelling: str


class _Object(dict[str, Any]):
    spelling = ""


class _Array(list[Any]):
    spelling = ""


class _Integer(int):
    spelling = ""


class _Number(float):
    spelling = ""


_KINDS: dict[type, Callable[[Any], Any]] = {
    dict: _Object,
    list: _Array,
    int: _Integer,
    float: _Number,
}


def spelled(value: Any, text: str) -> Any:
    """`value` with its JSON `text`; strings and values of one spelling as they are."""
    kind = _KINDS.get(type(value))
    if kind is None:
        return value
    found = kind(value)
    found.spelling = text
    return found


def to_json(value: Any) -> str:
    """The JSON text of `value`: its own where it has one, else Python's, without escapes of
    characters beyond ASCII."""
    if isinstance(value, Spelled):
        return value.spelling
    return json.dumps(value, ensure_ascii=False)


def members(text: str) -> Iterator[tuple[str, Any, str]]:
    """Name, value and the value's own text of each member of the JSON object in `text`, which is
    known to be one."""
    at = _skip(text, text.index("{") + 1)
    while text[at] == '"':
        name, at = _decoder.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        value, end = _decoder.raw_decode(text, start)
        yield name, value, text[start:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
