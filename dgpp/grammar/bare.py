"""What a schema asks of a string that a call writes bare, without the quotes of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dgpp.grammar.errors import GrammarError
from dgpp.grammar.lark import ANYTHING, regex

_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_ZONE = r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,9}})?{_ZONE}"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HEX = "[0-9a-fA-F]"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": rf"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "email": rf"[A-Za-z0-9._%+-]{{1,64}}@{_LABEL}(\.{_LABEL})+",
}
_ANCHOR = re.compile(r"(?<!\\)(?<!\[)[\^$]")


def bare_text(schema: Any, key: str, *, strict: bool) -> str:
    """An expression for a terminal: the strings that `schema`, of the argument `key`, allows.

    Raises GrammarError where it is `strict` and asks for what cannot be kept."""
    if not isinstance(schema, Mapping):
        return ANYTHING
    found = [_length(schema)]
    for keyword, pattern_of in (("pattern", _searched), ("format", _FORMATS.get)):
        asked = schema.get(keyword)
        if not isinstance(asked, str):
            continue
        pattern = pattern_of(asked)
        if pattern is not None:
            found.append(regex(pattern))
        elif strict:
            raise GrammarError(f'Unimplemented keys: ["{keyword}"] of the bare text of {key!r}')
    kept = [one for one in found if one != ANYTHING] or [ANYTHING]
    return kept[0] if len(kept) == 1 else "(" + " & ".join(kept) + ")"


def _length(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minLength"), schema.get("maxLength")
    if not isinstance(least, int) and not isinstance(most, int):
        return ANYTHING
    low = least if isinstance(least, int) else 0
    return rf"/(.|\n){{{low},{most if isinstance(most, int) else ''}}}/"


def _searched(pattern: str) -> str | None:
    """A pattern that is looked for anywhere as one of the whole text; None where its anchors stand
    elsewhere than at its ends."""
    begins, ends = pattern.startswith("^"), bool(re.search(r"(?<!\\)(\\\\)*\$$", pattern))
    core = pattern[begins : len(pattern) - ends]
    if _ANCHOR.search(core) or ((begins or ends) and "|" in core and not _enclosed(core)):
        return None
    return ("" if begins else "(?s:.*)") + f"({core})" + ("" if ends else "(?s:.*)")


def _enclosed(core: str) -> bool:
    """Whether every alternative of `core` stands inside brackets."""
    depth = 0
    for place, char in enumerate(core):
        if place and core[place - 1] == "\\":
            continue
        depth += (char in "([") - (char in ")]")
        if char == "|" and depth == 0:
            return False
    return True
