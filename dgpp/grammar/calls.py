"""Calls of offered tools, in the format of a model, as grammar rules."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dgpp.grammar.bare import bare_text
from dgpp.grammar.errors import GrammarError
from dgpp.grammar.lark import (
    ANYTHING,
    COMPACT,
    LENIENT,
    LarkWriter,
    alternatives,
    containing,
    escaped,
    regex,
)
from dgpp.text.calls.format import ToolFormat
from dgpp.text.calls.values import ANY, types_of
from dgpp.text.messages import Tool

_HOLE, _NAME, _KEY = "\ue000", "\ue001", "\ue002"
"""Stand-ins that the format's own writer is given, to see what stands around name, key, value."""
_NAMES = re.compile(r'[^"<>\n]{1,256}')
"""Names of arguments that whoever reads calls can tell from what stands around them."""


class CallWriter:
    """Takes the markers of a format from its own writer: what is written is what may be said.

    A call is head, name, middle, arguments, end; without arguments `blank` stands for them. An
    argument is before, key, open (of a string, or of JSON), value, after.
    """

    def __init__(self, writer: LarkWriter, form: ToolFormat) -> None:
        self._writer = writer
        self._form = form
        self._head, empty = form.write(_NAME, {}).split(_NAME)
        _, two = form.write(_NAME, {_KEY: _HOLE, _KEY + _KEY: _HOLE}).split(_NAME)
        first, self._string_open, between, _, rest = _split(two)
        # A marker is never cut: an argument begins where its last marker does.
        self._before = first[first.rindex("<") :]
        self._middle = first.removesuffix(self._before)
        self._after = between.removesuffix(self._before)
        self._end = rest.removeprefix(self._after)
        self._blank = empty.removeprefix(self._middle).removesuffix(self._end)
        _, listed = form.write(_NAME, {_KEY: [_HOLE]}).split(_NAME)
        self._json_open = listed.split(_KEY)[1].split(f'["{_HOLE}"]')[0]
        follow = "|".join(map(escaped, form.follow))
        self._never = [containing(form.closing.decode(), rf"\s*({follow})")]
        """What would end a value for whoever reads it."""

    def calls(self, tools: Sequence[Tool], *, several: bool, opened: bool = False) -> str:
        """One call of any of `tools`, or several one after the other; with `opened` the marker
        that begins the first is there already."""
        form, writer = self._form, self._writer
        marker = form.opening.decode()
        call = self._any(tools, self._head)
        if form.again is None:
            first = self._any(tools, self._head.removeprefix(marker)) if opened else call
            return f'{first} (("\\n")? {call})*' if several else first
        opening = writer.literal("\n" if opened else marker + "\n")
        closing = writer.literal(marker.replace("<", "</", 1))
        # A lexeme is the longest that fits: the line's end must not begin two of them.
        line = f'({call} "\\n")'
        return f"{opening} {line}{'+' if several else ''} {closing}"

    def _any(self, tools: Sequence[Tool], head: str) -> str:
        return self._writer.rule(alternatives([self._call(tool, head) for tool in tools]))

    def _call(self, tool: Tool, head: str) -> str:
        writer = self._writer
        root = json.loads(tool.definition).get("parameters") or {}
        arguments = self._input(tool) if tool.custom else self._arguments(tool, root)
        begin = f"{writer.literal(head)} {json.dumps(tool.name)}"
        middle = f" {writer.literal(self._middle)}" if self._middle else ""
        end = f" {writer.literal(self._end)}" if self._end else ""
        return writer.rule(f"{begin}{middle} {arguments}{end}")

    def _arguments(self, tool: Tool, root: Mapping[str, Any]) -> str:
        """The declared arguments in their order, those that are not required optional."""
        declared = root.get("properties")
        properties = declared if isinstance(declared, Mapping) else {}
        required = set(root.get("required") or []) & properties.keys()
        parts = []
        for key, schema in properties.items():
            one = self._argument(key, schema, root, strict=tool.strict)
            parts.append(one if key in required else f"({one})?")
        if not properties or root.get("additionalProperties") is True:
            parts.append(f"({self._free_argument()})*")
        if self._blank and not required:
            parts.append(f"({json.dumps(self._blank)})?")
        return " ".join(parts) if parts else '""'

    def _argument(self, key: str, schema: Any, root: Mapping[str, Any], *, strict: bool) -> str:
        if not _NAMES.fullmatch(key) or self._writer.has_control(key):
            raise GrammarError(f"the argument name {key[:64]!r} cannot be written in a call")
        types = types_of(schema, root)
        if "string" in types:
            value = self._string(schema) if types == {"string"} else ""
            if value:
                return f"{self._opening(key, string=True)} {value} {self._closing()}"
            bare = types == {"string"}
            body = bare_text(schema, key, strict=strict) if bare else ANYTHING
            text = f"{self._opening(key, string=True)} {self._until_closed(body)}"
            if types in (ANY, {"string"}) or self._string_open == self._json_open:
                return self._writer.rule(text)
            return self._writer.rule(alternatives([text, self._json(key, schema, root, strict)]))
        return self._writer.rule(self._json(key, schema, root, strict))

    def _json(self, key: str, schema: Any, root: Mapping[str, Any], strict: bool) -> str:
        whole = dict(schema) if isinstance(schema, Mapping) else {}
        whole |= {name: root[name] for name in ("$defs", "definitions") if name in root}
        value = self._writer.schema(whole, COMPACT if strict else LENIENT)
        return f"{self._opening(key, string=False)} {value} {self._closing()}"

    def _string(self, schema: Any) -> str:
        """Where only certain strings are allowed, these; "" where any is."""
        allowed = None
        if isinstance(schema, Mapping):
            allowed = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(allowed, list):
            return ""
        return alternatives([json.dumps(text) for text in allowed if isinstance(text, str)])

    def _input(self, tool: Tool) -> str:
        """The free text of a custom tool, or what its own grammar allows."""
        opening = self._opening("input", string=True)
        if tool.grammar is None:
            return f"{opening} {self._until_closed()}"
        kind, text = tool.grammar
        writer = self._writer
        own = writer.text(regex(text), self._never) if kind == "regex" else writer.grammar(text)
        return f"{opening} {own} {self._closing()}"

    def _free_argument(self) -> str:
        writer = self._writer
        key = writer.rule(r"/[A-Za-z0-9_.-]{1,64}/")
        before = writer.literal(self._before)
        opening = writer.literal(self._string_open)
        return f"{before} {key} {opening} {self._until_closed()}"

    def _opening(self, key: str, *, string: bool) -> str:
        return self._writer.literal(
            self._before + key + (self._string_open if string else self._json_open)
        )

    def _closing(self) -> str:
        return self._writer.literal(self._after)

    def _until_closed(self, body: str = ANYTHING) -> str:
        return self._writer.text_until(self._after, body, self._never)


def _split(text: str) -> list[str]:
    """What stands before, between and behind two arguments' keys and values."""
    before, rest = text.split(_KEY, 1)
    opened, between, tail = rest.split(_HOLE)
    middle, opened_again = between.split(_KEY + _KEY)
    return [before, opened, middle, opened_again, tail]
