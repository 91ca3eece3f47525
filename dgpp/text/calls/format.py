"""How a model writes tool calls: one description per format, read by the router and by templates.

A call is a head (through the function's name), arguments (a key, then a value up to a closing
marker) and an end. The patterns work on bytes, because a marker may be cut anywhere, and each one
ends where the next byte can no longer change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import regex

from dgpp.text.spelled import to_json

Pattern = Any
"""A compiled pattern of the `regex` package, which can match partially."""

NAME = rb"(?P<name>[A-Za-z0-9_.\-]{1,64})"
SPACE = rb"\s{0,64}"
"""White space between markers; bounded, so that what waits for more is bounded."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way of writing calls.

    `opening`      what begins a block of calls
    `head`         from `opening` (or from `again`) through the name; group `name`
    `argument`     from there to where a value begins; groups `key` and, in some, `string`
    `closing`      what ends a value
    `padded`       one newline at either end of a value belongs to the markers
    `follow`       what may stand behind `closing`: how a further argument and `end` begin
    `end`          what ends a call after its last value
    `again`        a further call's head inside the same block, or None
    `done`         what ends the block after a call's end, or None where that ends it
    `in_reasoning` a call inside the reasoning ends the reasoning; else it is part of it
    `write`        the text of a call, as templates render it
    """

    name: str
    opening: bytes
    head: Pattern
    argument: Pattern
    closing: bytes
    padded: bool
    follow: tuple[str, str]
    end: Pattern
    again: Pattern | None
    done: Pattern | None
    in_reasoning: bool
    write: Callable[[str, Mapping[str, Any]], str]

    def block(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """The text of several calls, where a block holds them all; else of one after the other."""
        written = [self.write(*call) for call in calls]
        if self.again is None:
            return "".join(written)
        opening = self.opening.decode()
        return "\n".join([opening, *written, opening.replace("<", "</", 1)])


def _value(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def _write_glm(name: str, arguments: Mapping[str, Any]) -> str:
    pairs = (
        f"<arg_key>{key}</arg_key><arg_value>{_value(value)}</arg_value>"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}{''.join(pairs)}</tool_call>"


def _write_qwen(name: str, arguments: Mapping[str, Any]) -> str:
    pairs = (f"<parameter={k}>\n{_value(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"


def _write_mimo(name: str, arguments: Mapping[str, Any]) -> str:
    pairs = (f"<parameter={k}>{_value(v)}</parameter>" for k, v in arguments.items())
    return f"<tool_call><function={name}>{''.join(pairs)}</function></tool_call>"


def _writer_dsml(gap: str) -> Callable[[str, Mapping[str, Any]], str]:
    def write(name: str, arguments: Mapping[str, Any]) -> str:
        pairs = [
            f'<｜DSML｜{gap}parameter name="{key}" string="{str(isinstance(v, str)).lower()}">'
            f"{_value(v)}</｜DSML｜{gap}parameter>"
            for key, v in arguments.items()
        ]
        lines = pairs or [""] * len(gap)  # V4.1 leaves a line empty where V4 leaves none
        end = f"</｜DSML｜{gap}invoke>"
        return "\n".join([f'<｜DSML｜{gap}invoke name="{name}">', *lines, end])

    return write


def _dsml(name: str, gap: str, block: str) -> ToolFormat:
    mark = "<｜DSML｜".encode()
    close = "</｜DSML｜".encode()
    space = gap.encode()
    opening = mark + block.encode() + b">"
    invoke = regex.escape(mark + space + b'invoke name="') + NAME + rb'">'
    return ToolFormat(
        name=name,
        opening=opening,
        head=regex.compile(regex.escape(opening) + SPACE + invoke),
        argument=regex.compile(
            SPACE
            + regex.escape(mark + space + b'parameter name="')
            + rb'(?P<key>[^"<>\n]{1,256})" string="(?P<string>true|false)">'
        ),
        closing=close + space + b"parameter>",
        padded=False,
        follow=(f'<｜DSML｜{gap}parameter name="', f"</｜DSML｜{gap}invoke>"),
        end=regex.compile(SPACE + regex.escape(close + space + b"invoke>")),
        again=regex.compile(SPACE + invoke),
        done=regex.compile(SPACE + regex.escape(close + block.encode() + b">")),
        in_reasoning=False,
        write=_writer_dsml(gap),
    )


GLM = ToolFormat(
    name="glm",
    opening=b"<tool_call>",
    head=regex.compile(rb"<tool_call>" + SPACE + NAME + SPACE + rb"(?=<)"),
    argument=regex.compile(
        SPACE + rb"<arg_key>(?P<key>[^<>\n]{1,256})</arg_key>" + SPACE + rb"<arg_value>"
    ),
    closing=b"</arg_value>",
    padded=False,
    follow=("<arg_key>", "</tool_call>"),
    end=regex.compile(SPACE + rb"</tool_call>"),
    again=None,
    done=None,
    in_reasoning=False,
    write=_write_glm,
)

QWEN = ToolFormat(
    name="qwen",
    opening=b"<tool_call>",
    head=regex.compile(rb"<tool_call>" + SPACE + rb"<function=" + NAME + rb">"),
    argument=regex.compile(SPACE + rb"<parameter=(?P<key>[^<>\n]{1,256})>(?:\n|(?=[^\n]))"),
    closing=b"</parameter>",
    padded=True,
    follow=("<parameter=", "</function>"),
    end=regex.compile(SPACE + rb"</function>" + SPACE + rb"</tool_call>"),
    again=None,
    done=None,
    in_reasoning=True,
    write=_write_qwen,
)

MIMO = ToolFormat(
    name="mimo",
    opening=b"<tool_call>",
    head=regex.compile(rb"<tool_call>" + SPACE + rb"<function=" + NAME + rb">"),
    argument=regex.compile(SPACE + rb"<parameter=(?P<key>[^<>\n]{1,256})>"),
    closing=b"</parameter>",
    padded=False,
    follow=("<parameter=", "</function>"),
    end=regex.compile(SPACE + rb"</function>" + SPACE + rb"</tool_call>"),
    again=None,
    done=None,
    in_reasoning=True,
    write=_write_mimo,
)

DSML_V4 = _dsml("dsml-v4", "", "tool_calls")
DSML_V41 = _dsml("dsml-v4.1", " ", " calls")

MARKERS = frozenset({
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "<function=", "</function>", "<parameter=", "</parameter>", "｜DSML｜",
})  # fmt: skip
"""Texts that a vocabulary may hold as control tokens and that the router must see."""

FORMATS = (GLM, QWEN, MIMO, DSML_V4, DSML_V41)
