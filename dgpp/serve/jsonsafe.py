"""Request bodies to Python objects, bounded before anything recursive runs over them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

import numpy as np
import orjson

from dgpp.serve import limits
from dgpp.serve.errors import invalid

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_LONG_NUMBER = re.compile(rb"[-+.0-9eE]{%d}" % (limits.JSON_NUMBER_CHARS + 1))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises a 400 ApiError for JSON that is malformed, not UTF-8, too deep, with a number too long
    or not finite, with a member named twice in any object, or with half a surrogate pair.
    """
    _check_bounds(body)
    if _SURROGATE.search(body):
        _check_surrogates(body)
    try:
        text = body.decode()
        found = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not UTF-8: byte {error.start} is out of place") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise invalid(f"The body is not JSON: {error.msg} at {place}") from error
    if not isinstance(found, dict):
        raise invalid("The body must be a JSON object")
    return found


def _check_bounds(body: bytes) -> None:
    outside = _STRING.sub(b"", body)
    if _LONG_NUMBER.search(outside):
        raise invalid(f"A number in the body has over {limits.JSON_NUMBER_CHARS} characters")
    brackets = outside.translate(None, _NOT_BRACKETS)
    if len(brackets) > limits.JSON_DEPTH:
        codes = np.frombuffer(brackets, np.uint8)
        steps = np.where((codes == ord("[")) | (codes == ord("{")), 1, -1)
        if int(np.cumsum(steps).max()) > limits.JSON_DEPTH:
            raise invalid(f"The body nests over {limits.JSON_DEPTH} levels deep")


def _check_surrogates(body: bytes) -> None:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"The body is not JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = shorten(next(name for name, count in counts.items() if count > 1))
        raise invalid(f"The member {twice!r} is given twice", twice)
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise invalid(f"The number {shorten(text)} is too large")
    return number


def _no_constant(name: str) -> NoReturn:
    raise invalid(f"The body is not JSON: {name} is not a JSON number")


def shorten(text: str) -> str:
    """`text` cut to what an error message may repeat of a client's value."""
    limit = limits.ECHOED_CHARS
    return text if len(text) <= limit else text[:limit] + "…"
