"""Reads a deployment file as strict JSON and lays overrides over it."""

import copy
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from dgpp.config.check import Reader, nearest, shown
from dgpp.config.key import Field, Kind, leaves
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError

_MAX_DEPTH = 64


class Override(msgspec.Struct, frozen=True):
    """One value from the command line: `origin` is how it was spelled there."""

    path: str
    value: Any
    origin: str


class _Object(dict[str, Any]):
    """A JSON object that remembers the keys it was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = Counter(name for name, _ in pairs)
        self.twice = [name for name, times in names.items() if times > 1]


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value inside `value` with its path, parents first."""
    pending = [(path, value)]
    while pending:
        path, value = pending.pop()
        yield path, value
        if isinstance(value, dict):
            pending += [(f"{path}.{k}" if path else k, v) for k, v in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{i}]", v) for i, v in enumerate(value)]


def parse_document(data: bytes, source: str) -> dict[str, Any]:
    """The JSON object in `data`; no key twice at any level, no NaN, at most 64 levels deep.

    Raises ConfigError "cluster config `source`: ...", naming the key or the line.
    """
    reader = Reader(f"cluster config {source}")
    try:
        document = json.loads(data.decode(), object_pairs_hook=_Object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        reader.fail(f"line {error.lineno} column {error.colno}", f"not JSON: {error.msg}")
    except UnicodeDecodeError as error:
        reader.fail(f"byte {error.start}", "not UTF-8")
    except RecursionError:
        reader.fail("the file", f"nested deeper than {_MAX_DEPTH} levels")
    except ValueError as error:
        reader.fail("the file", f"not JSON: {error}")
    if not isinstance(document, dict):
        reader.fail("the file", f"expected an object, got {shown(document)}")
    for path, value in _walk(document, ""):
        if isinstance(value, _Object) and value.twice:
            reader.fail(f"{path}.{value.twice[0]}" if path else value.twice[0], "given twice")
        if path.count(".") + path.count("[") >= _MAX_DEPTH:
            reader.fail(path[:80], f"nested deeper than {_MAX_DEPTH} levels")
    return {name: _plain(value) for name, value in document.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _field(path: str, origin: str) -> Field:
    table = leaves(Settings)
    if path not in table:
        Reader(origin).fail(path, "unknown key" + nearest(path, table))
    return table[path]


def _typed(field: Field, text: str) -> Any:
    """`text` as JSON; as a plain string where it is none, or where the key wants a string."""
    try:
        value = json.loads(text, parse_constant=_constant)
    except (ValueError, RecursionError):
        return text
    stringy = field.kind in (Kind.STRING, Kind.CHOICE)
    return text if stringy and not isinstance(value, str | None) else value


def parse_set(assignment: str) -> Override:
    """An override from `path=value`; the value is JSON, else a string."""
    path, equals, text = assignment.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(f"--set {shown(assignment)}: expected path=value")
    return Override(path, _typed(_field(path, "--set"), text), "--set")


def parse_flag(path: str, flag: str, text: str | bool) -> Override:
    """An override from a flag of its own; `text` is typed by the key."""
    value = text if isinstance(text, bool) else _typed(_field(path, flag), text)
    return Override(path, value, flag)


def overlay(document: Mapping[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """A copy of `document` with the overrides laid over it, later ones over earlier ones.

    Each is checked on its own first, so that its error names its flag. Raises ConfigError.
    """
    result: dict[str, Any] = copy.deepcopy(dict(document))
    paths = set()
    for override in overrides:
        field = _field(override.path, override.origin)
        Reader(override.origin).value(field, override.value)
        *parents, name = override.path.split(".")
        section = result
        for parent in parents:
            inner = section.get(parent)
            section[parent] = section = {} if inner is None else inner
        section[name] = override.value
        paths.add(override.path)
    if "engine.mtp" in paths and result["engine"]["mtp"] is False:
        _drop_draft_keys(result["engine"], paths)
    return result


def _drop_draft_keys(engine: dict[str, Any], given: set[str]) -> None:
    """Turning drafts off from the command line also drops what the file says about them."""
    for name in ("mtp_depth", "mtp_schedule", "mtp_schedule_min_depth"):
        if f"engine.{name}" not in given:
            engine.pop(name, None)
