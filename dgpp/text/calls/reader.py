"""Reads one block of tool calls from a stream of bytes, and tells its parts as they are certain."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import NamedTuple

from dgpp.text.calls.format import Pattern, ToolFormat
from dgpp.text.calls.values import ToolSchema, is_json, json_string, json_value

STRING = frozenset({"string"})
JSON_ENDS = frozenset(b'"]}el0123456789'[at : at + 1] for at in range(15))
"""With what a value can end: most places where it does not are told by their last byte."""
_decoder = codecs.getincrementaldecoder("utf-8")


class CallBegun(NamedTuple):
    """A call whose name is complete."""

    name: str
    custom: bool


class Arguments(NamedTuple):
    """The next piece of the running call's arguments: JSON text, or plain text of a custom tool."""

    text: str


class CallEnded(NamedTuple):
    """The running call is complete, or there will be no more of it (`whole` False)."""

    whole: bool


Event = CallBegun | Arguments | CallEnded


class Answer(NamedTuple):
    """What a reader made of the bytes it was shown: `used` of them, with these events.

    `block` says whether the block goes on, has ended after `used`, or is no block at all.
    """

    used: int
    events: list[Event]
    block: str


GOES_ON, OVER, NO_BLOCK = "goes on", "over", "no block"


class CallReader:
    """The state of one block, from its opening marker on.

    Nothing is told before it is certain: a call begins with its first argument or its end, so
    that a name in prose is no call; a closing marker ends a value only where an argument that the
    tool has, or the end of the call, follows. So a value may hold the text of a closing marker.
    `held`: a grammar holds the calls to their schemas, so that JSON is over where it is complete,
    whatever stands in its strings.
    """

    def __init__(
        self, form: ToolFormat, tools: Mapping[str, ToolSchema], *, held: bool = False
    ) -> None:
        self._form = form
        self._tools = tools
        self._held = held
        self._tool: ToolSchema | None = None
        self._seen: set[str] = set()
        self._types = STRING
        self._value: _Value | None = None
        self._between = False

    @property
    def inside(self) -> bool:
        """A call has begun and not ended."""
        return self._tool is not None

    def read(self, data: bytes, *, final: bool = False) -> Answer:
        """Read from `data`, which begins where the last answer stopped. With `final` nothing
        follows `data`, and what is still open stays so (`close` ends it)."""
        at, events = 0, list[Event]()
        while True:
            if self._value is not None:
                used, going = self._in_value(data[at:], events, final)
            elif self._between:
                used, going = self._between_calls(data[at:], events, final)
                if going == OVER:
                    return Answer(at + used, events, OVER)
            else:
                used, going = self._at_head(data[at:], events, self._form.head, final)
                if going == NO_BLOCK:
                    return Answer(at, events, NO_BLOCK)
            at += used
            if going == GOES_ON:
                return Answer(at, events, GOES_ON)
            if not self.inside and self._form.done is None:
                return Answer(at, events, OVER)

    def close(self, events: list[Event], *, whole: bool) -> None:
        """The text is over inside a call: end it, as valid JSON where it is to be `whole`."""
        if self._tool is None:
            return
        if self._value is not None:
            events.extend(self._value.end(whole=whole))
        self._finish(events, whole=whole)

    # Each of the following gives (bytes used, state): a true state means "look again".

    def _at_head(
        self, data: bytes, events: list[Event], pattern: Pattern, final: bool
    ) -> tuple[int, str]:
        head = pattern.match(data, partial=True)
        if head is None or (head.partial and final):
            return 0, NO_BLOCK
        if head.partial:
            return 0, GOES_ON
        tool = self._tools.get(head.group("name").decode("ascii"))
        if tool is None:
            return 0, NO_BLOCK
        rest = data[head.end() :]
        follow = self._follow(tool, set(), rest, strict=False)
        if follow is None or (follow == "" and final):
            return 0, NO_BLOCK
        if follow == "":
            return 0, GOES_ON
        self._tool = tool
        self._between = False
        self._seen = set()
        events.append(CallBegun(tool.name, tool.custom))
        return head.end() + self._take(tool, rest, events), "more"

    def _between_calls(self, data: bytes, events: list[Event], final: bool) -> tuple[int, str]:
        """After a call of a format whose block holds several."""
        form = self._form
        assert form.again is not None
        assert form.done is not None
        used, state = self._at_head(data, events, form.again, final)
        if state == "more":
            return used, state
        done = form.done.match(data, partial=True)
        if done is not None and not done.partial:
            return done.end(), OVER
        if final or (state == NO_BLOCK and done is None):
            return 0, OVER
        return 0, GOES_ON

    def _in_value(self, data: bytes, events: list[Event], final: bool) -> tuple[int, str]:
        value, tool, form = self._value, self._tool, self._form
        assert value is not None
        assert tool is not None
        start = 0
        while (found := data.find(form.closing, start)) >= 0:
            after = found + len(form.closing)
            follow = self._follow(tool, self._seen, data[after:], strict=True)
            if follow is None or (self._held and not value.may_end(data[:found])):
                start = found + 1
                continue
            cut = found - 1 if form.padded and data[max(0, found - 1) : found] == b"\n" else found
            if follow == "" and not final:
                events.extend(value.more(data[:cut]))
                return cut, GOES_ON
            events.extend(value.more(data[:cut]))
            events.extend(value.end(whole=True))
            self._value = None
            if not follow:
                return len(data), GOES_ON
            return after + self._take(tool, data[after:], events), "more"
        cut = _before_marker(data, form.closing, start)
        if final and not data[cut:].startswith(b"</"):
            cut = len(data)
        if form.padded and data[max(0, cut - 1) : cut] == b"\n":
            cut -= 1
        events.extend(value.more(data[:cut]))
        return (len(data) if final else cut), GOES_ON

    def _follow(self, tool: ToolSchema, seen: set[str], data: bytes, *, strict: bool) -> str | None:
        """What follows a name or a value: "argument", "end", "" (not known yet) or None (neither).

        `strict` asks that an argument is one that the tool has and that was not given yet.
        """
        argument = self._form.argument.match(data, partial=True)
        end = self._form.end.match(data, partial=True)
        if end is not None and not end.partial:
            return "end"
        if argument is not None and not argument.partial:
            key = argument.group("key").decode("utf-8", "replace")
            if strict and not tool.declares(key):
                return None
            if strict and key in seen and not self._held:
                return None
            return "argument"
        return None if argument is None and end is None else ""

    def _take(self, tool: ToolSchema, data: bytes, events: list[Event]) -> int:
        """Go past the argument's beginning or the call's end that `_follow` has seen."""
        end = self._form.end.match(data)
        if end is not None:
            self._finish(events, whole=True)
            return int(end.end())
        argument = self._form.argument.match(data)
        assert argument is not None
        key = argument.group("key").decode("utf-8", "replace")
        types = tool.types(key)
        if "string" in argument.groupdict():
            types = STRING if argument.group("string") == b"true" else types - STRING
        # A grammar cannot keep a name from being given twice: the first counts.
        self._value = _Value(
            _lead(key, first=not self._seen),
            types,
            plain=tool.custom and key == "input",
            muted=key in self._seen,
        )
        self._seen.add(key)
        return int(argument.end())

    def _finish(self, events: list[Event], *, whole: bool) -> None:
        assert self._tool is not None
        if whole and not self._tool.custom:
            events.append(Arguments("}" if self._seen else "{}"))
        events.append(CallEnded(whole))
        self._tool = None
        self._value = None
        self._between = self._form.done is not None


class _Value:
    """One argument's value on its way to JSON: strings stream, anything else waits for its end."""

    def __init__(self, lead: str, types: frozenset[str], *, plain: bool, muted: bool) -> None:
        self._lead = "" if plain else lead
        self._types = types
        self._plain = plain
        self._muted = muted
        self._streams = plain or types == STRING
        self._decoder = _decoder("replace")
        self._begun = False
        self._kept: list[str] = []

    def more(self, data: bytes) -> list[Event]:
        text = self._decoder.decode(data)
        if not text or (self._muted and self._streams):
            return []
        if not self._streams:
            self._kept.append(text)
            return []
        return [Arguments(self._opening() + self._escaped(text))]

    def may_end(self, more: bytes) -> bool:
        """Whether the value can be over with `more`: as JSON, where it can be nothing else."""
        if self._streams or "string" in self._types:
            return True
        if more.rstrip()[-1:] not in JSON_ENDS:
            return not more.strip() and is_json("".join(self._kept))
        return is_json("".join(self._kept) + more.decode("utf-8", "replace"))

    def end(self, *, whole: bool) -> list[Event]:
        rest = self._decoder.decode(b"", True)
        if self._muted:
            return []
        if self._streams:
            closing = '"' if whole and not self._plain else ""
            text = self._opening() + self._escaped(rest) + closing
            return [Arguments(text)] if text else []
        if not whole:
            return []
        text = json_value("".join(self._kept) + rest, self._types)
        return [Arguments(self._lead + text)]

    def _opening(self) -> str:
        if self._begun or self._plain:
            return ""
        self._begun = True
        return self._lead + '"'

    def _escaped(self, text: str) -> str:
        return text if self._plain else json_string(text)[1:-1]


def _lead(key: str, *, first: bool) -> str:
    return ("{" if first else ", ") + json_string(key) + ": "


def _before_marker(data: bytes, marker: bytes, start: int) -> int:
    """Where the longest end of `data`, not before `start`, that begins `marker` starts."""
    for at in range(max(start, len(data) - len(marker) + 1), len(data)):
        if marker.startswith(data[at:]):
            return at
    return len(data)
