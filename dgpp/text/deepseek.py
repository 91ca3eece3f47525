"""The prompts of DeepSeek V4 and V4.1, whose releases hold no template.

V4 puts all system messages, and the effort as a preamble, ahead of the conversation; V4.1 has a
turn for each, the effort as a number in the first. In both, tools follow the first system text,
the results of calls stand in the user's turn in the order of the calls, and earlier reasoning is
shown again where tools are offered and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from dgpp.text.calls.format import DSML_V4, DSML_V41, ToolFormat
from dgpp.text.errors import TemplateError
from dgpp.text.spelled import to_json

_BEGIN, _END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_SYSTEM, _USER, _ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"

_HIGH = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve \
the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and \
adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, \
considered alternative, and rejected hypothesis to ensure absolutely no assumption is left \
unchecked.

"""
_MAX = """\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: \
exhaustively decompose the problem into its most fundamental components, trace every causal chain \
to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and \
are certain that no assumption remains unchecked and no error remains undiscovered.

"""
_NUMBER = """\
Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)

"""
_TOOLS = """\


## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "{open}" block like the following:

{open}
<｜DSML｜{gap}invoke name="$TOOL_NAME">
<｜DSML｜{gap}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE\
</｜DSML｜{gap}parameter>
...
</｜DSML｜{gap}invoke>
<｜DSML｜{gap}invoke name="$TOOL_NAME2">
...
</｜DSML｜{gap}invoke>
{close}

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning \
inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{tools}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


@dataclass(frozen=True, slots=True)
class _Version:
    """`efforts`: what stands ahead of the system text for each effort; `high` is the default.
    `turns`: each system message is a turn of its own, else all stand ahead of the conversation."""

    calls: ToolFormat
    gap: str
    efforts: Mapping[str, str]
    turns: bool


_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")

V4 = _Version(DSML_V4, "", dict(zip(_LEVELS, ("", "", *[_HIGH] * 3, _MAX), strict=True)), False)
V41 = _Version(
    DSML_V41,
    " ",
    {
        level: _NUMBER.format(number)
        for level, number in zip(_LEVELS, (25, 50, 62, 75, 100, 100), strict=True)
    },
    True,
)
VERSIONS = {"deepseek_v4": V4, "deepseek_v41": V41}
"""By config.json's model_type."""

_READS = frozenset({"enable_thinking", "reasoning_effort", "clear_thinking", "drop_thinking"})
_READS |= {"messages", "tools", "tool_calls"}


class DeepSeekTemplate:
    """Renders as `ChatTemplate` does, by rules instead of a text of the model's."""

    source = "\n".join((_BEGIN, _END, _SYSTEM, _USER, _ASSISTANT, _HIGH, _MAX, _NUMBER, _TOOLS))

    def __init__(self, version: _Version) -> None:
        self._version = version

    def reads(self, name: str) -> bool:
        """Whether the switch `name` changes anything."""
        return name in _READS

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        now: float = 0.0,
    ) -> str:
        """The prompt for `messages`. Switches: `enable_thinking` (on), `reasoning_effort` (high),
        and `clear_thinking` or `drop_thinking` (on, unless tools are offered), which leaves
        earlier reasoning out. Raises TemplateError for an effort or a role that is unknown."""
        thinking = variables.get("enable_thinking") is not False
        tools = variables.get("tools") or ()
        clear = variables.get("clear_thinking", variables.get("drop_thinking", not tools))
        lead = self._effort(variables) if thinking else ""
        turns = list(messages)
        if self._version.turns:
            first = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else None
            told = (lead or first is not None or tools) and f"{_SYSTEM}{lead}{first or ''}"
        else:
            texts = (m["content"] for m in turns if m["role"] == "system")
            told = lead + "\n\n".join(filter(None, texts))
            turns = [message for message in turns if message["role"] != "system"]
        parts = [_BEGIN, told or "", self._tools(tools)]
        parts += self._conversation(turns, kept=thinking and not clear)
        parts += [_ASSISTANT, "<think>" if thinking else "</think>"]
        return "".join(parts)

    def _effort(self, variables: Mapping[str, Any]) -> str:
        effort = variables.get("reasoning_effort", "high")
        found = self._version.efforts.get(effort)
        if found is None:
            raise TemplateError(f"the reasoning effort {effort} is unknown")
        return found

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        if not tools:
            return ""
        opening = self._version.calls.opening.decode()
        shown = []
        for tool in tools:
            function = tool["function"]
            schema = {
                "name": function["name"],
                "description": function.get("description") or "",
                "parameters": function.get("parameters") or {},
            }
            shown.append(to_json(schema))
        return _TOOLS.format(
            open=opening,
            close=opening.replace("<", "</", 1),
            gap=self._version.gap,
            tools="\n".join(shown),
        )

    def _conversation(self, turns: Sequence[Mapping[str, Any]], *, kept: bool) -> Iterator[str]:
        """The turns; `kept` shows their reasoning again."""
        waiting: list[Mapping[str, Any]] = []
        order: dict[Any, int] = {}
        for message in turns:
            role = message["role"]
            if role in ("user", "tool"):
                waiting.append(message)
                continue
            yield _user_turn(waiting, order, merged=not self._version.turns)
            waiting = []
            if role == "system":
                yield f"{_SYSTEM}{message['content']}"
            elif role == "assistant":
                calls = message.get("tool_calls") or ()
                order = {call["id"]: index for index, call in enumerate(calls)}
                yield self._answer(message, kept=kept)
            else:
                raise TemplateError(f"the role {role} is unknown")
        yield _user_turn(waiting, order, merged=not self._version.turns)

    def _answer(self, message: Mapping[str, Any], *, kept: bool) -> str:
        thought = f"<think>{message.get('reasoning_content') or ''}" if kept else ""
        text = f"{_ASSISTANT}{thought}</think>{message.get('content') or ''}"
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        if calls:
            block = self._version.calls.block((call["name"], call["arguments"]) for call in calls)
            text += f"\n\n{block}"
        return text + _END


def _user_turn(
    messages: Sequence[Mapping[str, Any]], order: Mapping[Any, int], *, merged: bool
) -> str:
    """What the user and tools said up to the next answer, results in the `order` of their calls.
    `merged`: neighbours of the user's are one text, to which an empty one adds nothing."""
    if not messages:
        return ""
    results = [m for m in messages if m["role"] == "tool"]
    results.sort(key=lambda m: order.get(m.get("tool_call_id"), 0))
    ordered = iter(results)
    texts: list[str] = []
    for role, run in groupby(messages, itemgetter("role")):
        said = [message["content"] for message in run]
        if role == "tool":
            texts += (f"<tool_result>{next(ordered)['content']}</tool_result>" for _ in said)
        else:
            texts += ["\n\n".join(filter(None, said))] if merged else said
    return _USER + "\n\n".join(texts)
