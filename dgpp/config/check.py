"""Checks one JSON value against its key: the right type, in range, else a named error."""

import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from dgpp.config.key import Field, Kind, fields
from dgpp.errors import ConfigError

_SHOWN = 60
_LARGEST_NUMBER = 1e300

S = TypeVar("S", bound=msgspec.Struct)


def shown(value: object) -> str:
    """`value` as ASCII JSON, cut to a length that fits a log line."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """ " (did you mean X?)" for the known name most like `name`, or nothing."""
    close = difflib.get_close_matches(name[:_SHOWN], list(known), n=1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def number_range(field: Field) -> str:
    """The range of a numeric key in words that follow "an integer" or "a number"."""
    key = field.key
    if key.above is not None:
        return f" above {key.above:g}" + ("" if key.high is None else f" and at most {key.high}")
    if key.low is not None and key.high is not None:
        return f" in {key.low}..{key.high}"
    return "" if key.low is None else f" of at least {key.low}"


def expected(field: Field) -> str:
    """What a value of this key must be, for messages, help and the reference page."""
    match field.kind:
        case Kind.BOOLEAN:
            words = "true or false"
        case Kind.INTEGER | Kind.NUMBER:
            noun = "an integer" if field.kind is Kind.INTEGER else "a number"
            other = "".join(f"{value} or " for value in field.key.also)
            words = other + noun + number_range(field)
        case Kind.CHOICE:
            words = "one of " + ", ".join(field.choices)
        case Kind.STRINGS:
            words = field.key.expected or "a list of strings"
        case Kind.INTEGERS:
            words = "a list of integers" + number_range(field)
        case Kind.MAPS:
            words = field.key.expected or "a list of objects with string values"
        case Kind.OBJECT | Kind.SECTION:
            words = field.key.expected or "an object"
        case _:
            words = field.key.expected or "a string"
    return words + (" or null" if field.optional else "")


class Reader:
    """Reads sections of one source; every failure is a ConfigError that begins with `where`, or
    with what `elsewhere` has for its path or the first part of that."""

    def __init__(self, where: str, elsewhere: Mapping[str, str] | None = None) -> None:
        self._where = where
        self._elsewhere = elsewhere or {}

    def fail(self, path: str, problem: str) -> NoReturn:
        """Raise "`where`: `path`: `problem`"; whatever stands in a path is printed as ASCII."""
        name = path if path.isascii() and path.isprintable() else shown(path)
        where = self._elsewhere.get(path) or self._elsewhere.get(path.partition(".")[0])
        raise ConfigError(f"{where or self._where}: {name}: {problem}")

    def section(self, kind: type[S], raw: object, path: str = "") -> S:
        """A settings Struct from a JSON object: no unknown key, no missing one, all in range."""
        if not isinstance(raw, Mapping):
            self.fail(path or "the file", f"expected an object, got {shown(raw)}")
        table = fields(kind, path)
        values: dict[str, Any] = {}
        for name, value in raw.items():
            if name not in table:
                prefix = f"{path}." if path else ""
                self.fail(f"{prefix}{name}", "unknown key" + nearest(name, table, prefix))
            values[name] = self.value(table[name], value)
        for name, field in table.items():
            if field.required and name not in values:
                self.fail(field.path, f"required, expected {expected(field)}")
        return kind(**values)

    def value(self, field: Field, raw: Any) -> Any:
        """`raw` as the field's type, or a failure that names key, range and value."""
        if raw is None and field.optional:
            return None
        if field.section is not None:
            return self.section(field.section, raw, field.path)
        checked = _CHECKS[field.kind](field, raw)
        if checked is None:
            self.fail(field.path, f"expected {expected(field)}, got {shown(raw)}")
        if field.key.entries is not None:
            self._entries(field.path, field.key.entries, checked)
        return checked

    def _entries(
        self, path: str, known: Mapping[str, tuple[bool | str, ...]], given: dict[str, Any]
    ) -> None:
        for name, value in given.items():
            if name not in known:
                self.fail(f"{path}.{name}", "unknown key" + nearest(name, known, f"{path}."))
            if not any(type(value) is type(one) and value == one for one in known[name]):
                words = " or ".join(json.dumps(one) for one in known[name])
                self.fail(f"{path}.{name}", f"expected {words}, got {shown(value)}")


def _boolean(_field: Field, raw: object) -> bool | None:
    return raw if isinstance(raw, bool) else None


def _in_range(field: Field, number: float) -> bool:
    key = field.key
    if number in key.also:
        return True
    return (
        (key.low is None or number >= key.low)
        and (key.high is None or number <= key.high)
        and (key.above is None or number > key.above)
    )


def _integer(field: Field, raw: object) -> int | None:
    if isinstance(raw, bool) or not isinstance(raw, int):
        return None
    return raw if _in_range(field, raw) else None


def _number(field: Field, raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    if not _in_range(field, raw) or abs(raw) > _LARGEST_NUMBER or math.isnan(raw):
        return None
    return float(raw)


def clean(text: object) -> bool:
    """Whether `text` is a string of encodable, printable characters (no NUL, no newline)."""
    return isinstance(text, str) and text.isprintable()


def _string(field: Field, raw: object) -> str | None:
    if not isinstance(raw, str) or not clean(raw):
        return None
    valid = field.key.valid
    return raw if raw == field.default or valid is None or valid(raw) else None


def _choice(field: Field, raw: object) -> str | None:
    return raw if isinstance(raw, str) and raw in field.choices else None


def _strings(field: Field, raw: object) -> tuple[str, ...] | None:
    if not isinstance(raw, list | tuple):
        return None
    items = [item for item in raw if isinstance(item, str) and clean(item)]
    valid = field.key.valid
    if len(items) < len(raw) or (valid and not all(valid(item) for item in items)):
        return None
    return tuple(items)


def _integers(field: Field, raw: object) -> tuple[int, ...] | None:
    if not isinstance(raw, list | tuple):
        return None
    items = [_integer(field, item) for item in raw]
    return None if None in items else tuple(item for item in items if item is not None)


def _maps(_field: Field, raw: object) -> tuple[dict[str, str], ...] | None:
    if not isinstance(raw, list | tuple):
        return None
    for item in raw:
        if not isinstance(item, dict) or not all(map(clean, [*item.keys(), *item.values()])):
            return None
    return tuple(dict(item) for item in raw)


def _object(_field: Field, raw: object) -> dict[str, Any] | None:
    return dict(raw) if isinstance(raw, dict) else None


_CHECKS: dict[Kind, Callable[[Field, Any], Any]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.STRING: _string,
    Kind.CHOICE: _choice,
    Kind.STRINGS: _strings,
    Kind.INTEGERS: _integers,
    Kind.MAPS: _maps,
    Kind.OBJECT: _object,
}
