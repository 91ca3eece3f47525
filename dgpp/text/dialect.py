"""How a model marks its reasoning and its tool calls, read off its own chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dgpp.text.calls.format import FORMATS, ToolFormat
from dgpp.text.errors import TemplateError

THINK_OPEN = b"<think>"
THINK_CLOSE = b"</think>"
_ASKED, _THOUGHT, _SAID, _NAME = "Quokka", "Zebra", "Yak", "probe_fn"
_ARGUMENTS = {"alpha": "Wombat", "beta": 3}

Render = Callable[[Sequence[Mapping[str, Any]]], str]


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning stands between the think tags.

    `trimmed`  white space at either end of the reasoning is the template's, not the model's
    `after`    what the template puts between the closing tag and the answer
    """

    trimmed: bool
    after: bytes


@dataclass(frozen=True, slots=True)
class Dialect:
    """`thinking` and `calls` are None where the model's template knows neither.

    `trimmed`: white space around an answer's text is the template's, so that before a call it is
    not part of the answer. `gap` is what the template puts between the text and the first call.
    """

    thinking: Thinking | None = None
    calls: ToolFormat | None = None
    trimmed: bool = False
    gap: bytes = b""

    def ends_reasoning(self, *, tools: bool) -> tuple[bytes, ...]:
        """The markers that may end the reasoning, the closing tag first: the router looks for
        them, and a grammar lets none of them be part of the reasoning. `tools`: some may be
        called."""
        if tools and self.calls is not None and self.calls.in_reasoning:
            return (THINK_CLOSE, self.calls.opening)
        return (THINK_CLOSE,)


PLAIN = Dialect()


def dialect_of(render: Render) -> Dialect:
    """The dialect of the template behind `render`, found by rendering known answers with it."""
    thinking = _thinking(render)
    call = {"name": _NAME, "arguments": _ARGUMENTS}
    answer = {"role": "assistant", "content": f"{_SAID} \t", "reasoning_content": _THOUGHT}
    answer["tool_calls"] = [{"id": "call_1", "type": "function", "function": call}]  # type: ignore[assignment]
    text = _rendered(render, answer)
    for form in FORMATS:
        if form.write(_NAME, _ARGUMENTS) in text:
            trimmed = f"{_SAID} \t" not in text
            behind = text.partition(_SAID if trimmed else f"{_SAID} \t")[2]
            gap = behind.partition(form.opening.decode())[0].encode()
            return Dialect(thinking, form, trimmed=trimmed, gap=gap)
    plain = _rendered(render, {"role": "assistant", "content": f"{_SAID} \t"})
    return Dialect(thinking, None, trimmed=_SAID in plain and f"{_SAID} \t" not in plain)


def _thinking(render: Render) -> Thinking | None:
    answer = {"role": "assistant", "content": _SAID, "reasoning_content": f" {_THOUGHT} "}
    text = _rendered(render, answer).encode()
    opened = text.find(THINK_OPEN)
    closed = text.find(THINK_CLOSE, opened)
    thought = text.find(_THOUGHT.encode(), opened)
    said = text.find(_SAID.encode(), closed)
    if not 0 <= opened < thought < closed < said:
        return None
    inside = text[opened + len(THINK_OPEN) : closed]
    return Thinking(
        trimmed=inside != f" {_THOUGHT} ".encode(),
        after=text[closed + len(THINK_CLOSE) : said],
    )


def _rendered(render: Render, answer: Mapping[str, Any]) -> str:
    """The conversation that ends in `answer`, or "" where the template has no such turn."""
    try:
        return render([{"role": "user", "content": _ASKED}, answer])
    except TemplateError:
        return ""
