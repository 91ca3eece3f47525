"""Grammars as text in llguidance's dialect of Lark: rules are added, and written out at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
        pieces = self._tokenizer.guard.split(text, None)
        parts = [f"<[{p}]>" if isinstance(p, int) else json.dumps(p) for p in pieces]
        return " ".join(parts) if parts else '""'

    def text_until(self, marker: str, body: str = ANYTHING) -> str:
        """An expression for text that `body` matches, then `marker`, the first that comes."""
        if self.begins_with_control(marker):
            return f"{self.rule(body)} {self.literal(marker)}"
        number = len(self._rules)
        self._rules.append(f"until_{number}[suffix={json.dumps(marker)}]: {body}")
        return f"until_{number}"

    def begins_with_control(self, text: str) -> bool:
        return isinstance(next(self._tokenizer.guard.split(text, None), None), int)

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
