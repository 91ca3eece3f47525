"""Grammars as text in llguidance's dialect of Lark: rules are added, and written out at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dgpp.text.tokenizer import Tokenizer

ANYTHING = r"/(.|\n)*/"

COMPACT: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
"""JSON on one line, at most one space behind a comma or colon: a model cannot dawdle."""
LENIENT = {**COMPACT, "lenient": True}
""" … in which keywords that cannot be enforced are passed over."""


class LarkWriter:
    """Collects rules over one vocabulary.

    Texts that are control tokens are matched by their ids: text of any other token never is.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rules: list[str] = []
        self._schemas: dict[str, str] = {}
        self._named: list[tuple[str, str]] = []

    def literal(self, text: str) -> str:
        """An expression for exactly `text`."""
        return " ".join(map(_expression, self._tokenizer.guard.split(text, None))) or '""'

    def text(self, body: str = ANYTHING, never: Iterable[str] = ()) -> str:
        """An expression for text that `body` matches and no pattern of `never` matches whole."""
        refused = "|".join(never)
        if not refused:
            return self.rule(body)
        name = f"TEXT_{len(self._rules)}"
        self._rules.append(f"{name}: {body} & ~/{_slashed(refused)}/")
        return name

    def text_until(self, marker: str, body: str = ANYTHING, never: Iterable[str] = ()) -> str:
        """An expression for such text and then `marker`, the first that comes.

        Where a token of the marker's is a control token, the marker ends in no other way: spelled
        out it is never said.
        """
        never = list(never)
        pieces = list(self._tokenizer.guard.split(marker, None))
        place = next((at for at, piece in enumerate(pieces) if isinstance(piece, int)), None)
        if place is None:
            text = self.text(body, never) if never else body
            name = f"until_{len(self._rules)}"
            self._rules.append(f"{name}[suffix={json.dumps(marker)}]: {text}")
            return name
        lead = "".join(map(str, pieces[:place]))
        if lead:
            body = f"{body} {json.dumps(lead)}"
        rest = " ".join(map(_expression, pieces[place:]))
        return f"{self.text(body, [*never, containing(marker)])} {rest}"

    def has_control(self, text: str) -> bool:
        """Whether a control token's text stands in `text`."""
        return any(isinstance(piece, int) for piece in self._tokenizer.guard.split(text, None))

    def rule(self, body: str) -> str:
        """A rule of its own for `body`; its name."""
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def schema(self, schema: Any, options: Mapping[str, Any]) -> str:
        """An expression for the JSON of `schema` (an object or a boolean)."""
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        text = json.dumps({**schema, "x-guidance": {**options}}, ensure_ascii=False)
        if text not in self._schemas:
            self._schemas[text] = self.rule(f"%json {text}")
        return self._schemas[text]

    def grammar(self, lark: str) -> str:
        """An expression for what a client's own Lark grammar allows."""
        name = f"own_{len(self._named)}"
        self._named.append((name, lark))
        return f"@{name}"

    def source(self, start: str) -> str:
        """The whole grammar, as llguidance reads it."""
        lark = "\n".join([f"start: {start}", *self._rules]) + "\n"
        grammars = [{"lark_grammar": lark}]
        grammars += [{"name": name, "lark_grammar": text} for name, text in self._named]
        return json.dumps({"grammars": grammars}, ensure_ascii=False)


def alternatives(expressions: list[str]) -> str:
    return "(" + " | ".join(expressions) + ")"


def containing(text: str, pattern: str = "") -> str:
    """A pattern for whatever has `text`, and behind it what `pattern` matches, somewhere in it."""
    return rf"(?s:.*){escaped(text)}{pattern}(?s:.*)"


def escaped(text: str) -> str:
    """A pattern for exactly `text`."""
    return re.sub(r"[\\.+*?()|\[\]{}^$/#&~-]", r"\\\g<0>", text)


def _slashed(pattern: str) -> str:
    return pattern.replace("\\/", "/").replace("/", "\\/")


def regex(pattern: str) -> str:
    """`pattern` as the grammar writes it."""
    return f"/{_slashed(pattern)}/"


def _expression(piece: str | int) -> str:
    return f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece)
