"""Record what the vendor's own package makes of random conversations, as digests, for the tests.

python -m venv /tmp/v && /tmp/v/bin/pip install deepseek-recipe==0.2.0
/tmp/v/bin/python scripts/record_deepseek_prompts.py > tests/fixtures/deepseek_prompts.jsonl
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import deepseek_recipe as recipe

CASES = 150
TEXTS = ("", "A", "é x", "two\n\nlines", "<｜User｜>", "Z ")
VALUES = {"a": "v\n<b>", "b": 1.5, "c": None, "d": {"x": [1, "é"]}, "e": True, "f": "", "g": 0}
F = {"name": "f", "description": "d é", "parameters": {"properties": {"a": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": one} for one in (F, {"name": "g"})]


def conversation(random: random.Random) -> dict[str, Any]:
    """Well-formed: each call is answered at once, in any order."""
    messages: list[dict[str, Any]] = []
    calls = 0
    for _ in range(random.randint(1, 6)):
        role = random.choice(("system", "user", "user", "assistant", "assistant"))
        message = {"role": role, "content": random.choice(TEXTS)}
        messages.append(message)
        if role != "assistant":
            continue
        if random.random() < 0.5:
            message["reasoning_content"] = random.choice(("", "R", "think\n"))
        made = []
        for _ in range(random.choice((0, 0, 1, 2, 3))):
            given = dict(random.sample(sorted(VALUES.items()), random.randint(0, 3)))
            text = json.dumps(given, ensure_ascii=False)
            function = {"name": random.choice("fg"), "arguments": text}
            made.append({"id": f"c{calls}", "type": "function", "function": function})
            calls += 1
        if made:
            message["tool_calls"] = made
        for call in random.sample(made, len(made)):
            text = random.choice(("", "r", '{"t": 1}'))
            messages.append({"role": "tool", "content": text, "tool_call_id": call["id"]})
    return {
        "messages": messages,
        "tools": random.choice((None, TOOLS)),
        "thinking": random.random() < 0.7,
        "effort": random.choice((None, "low", "high", "max")),
        "version": random.choice(("deepseek_v4", "deepseek_v41")),
    }


def message_of(message: dict[str, Any], thinking: bool) -> recipe.Message:
    text = message["content"]
    if message["role"] == "system":
        return recipe.SystemMessage(text)
    if message["role"] == "user":
        return recipe.UserMessage(text)
    if message["role"] == "tool":
        return recipe.ToolMessage(text, message["tool_call_id"])
    calls = [
        recipe.ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    thought = (message.get("reasoning_content") or "") if thinking else None
    return recipe.AssistantMessage(text, thought, calls or None)


def prompt(case: dict[str, Any]) -> str:
    tools = [
        recipe.ToolDefinition(one["name"], one.get("description"), one.get("parameters", {}))
        for one in (tool["function"] for tool in case["tools"] or ())
    ]
    asked = recipe.Conversation(
        [message_of(message, case["thinking"]) for message in case["messages"]],
        thinking_mode=case["thinking"],
        tools=tools or None,
        reasoning_effort=case["effort"],
    )
    first = case["version"] == "deepseek_v4"
    encoding = recipe.DeepseekV4Encoding() if first else recipe.DeepseekV41Encoding()
    return str(encoding.render_conversation(asked).prompt)


def main() -> None:
    source = random.Random(1)
    for _ in range(CASES):
        case = conversation(source)
        case["sha256"] = hashlib.sha256(prompt(case).encode()).hexdigest()
        print(json.dumps(case, ensure_ascii=False))


if __name__ == "__main__":
    main()
