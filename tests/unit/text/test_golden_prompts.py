"""Prompts of all vendors, byte for byte, as requests bring them and our codec renders them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import vendors

from dgpp.serve.chat import parse_chat
from dgpp.serve.served import ServedModel
from dgpp.text.deepseek import VERSIONS, DeepSeekTemplate
from dgpp.text.efforts import efforts_of
from dgpp.text.messages import template_message

RECORDED = Path(__file__).parents[2] / "fixtures" / "deepseek_prompts.jsonl"


def cases(name: str) -> list[dict[str, Any]]:
    """The golden rows of a model. DeepSeek's come in two halves, of V4 and of V4.1."""
    rows = vendors.golden()
    ours = [row for row in rows if row["family"] == "deepseek-v4"]
    half = len(ours) // 2
    halves = {"deepseek_v4": ours[:half], "deepseek_v41": ours[half:]}
    return halves.get(name) or [row for row in rows if row["template"] == f"{name}.jinja"]


@vendors.needed
@pytest.mark.parametrize("name", vendors.MODELS)
def test_requests_become_the_vendors_prompts(name: str) -> None:
    codec = vendors.codec(name)
    efforts = efforts_of(codec.template, {})
    served = ServedModel("m", 200_000, 4096, 4096, efforts=efforts)
    rows = cases(name)
    assert len(rows) >= 24
    for row in rows:
        kwargs = dict(row["kwargs"])
        if kwargs.get("thinking") == {"type": "disabled"}:
            kwargs = {"enable_thinking": False}
        body = {"model": "m", "messages": row["messages"], "chat_template_kwargs": kwargs}
        if row["tools"]:
            body["tools"] = row["tools"]
        request = parse_chat(json.dumps(body).encode(), "r", served)
        ids = codec.chat(request.messages, request.template_kwargs, tools=request.tools)
        assert codec.tokenizer.decode(ids, skip_special=False) == row["text"], row["case"]
        assert ids == row["ids"], row["case"]


def test_deepseek_renders_as_its_own_package_does() -> None:
    def same(text: str) -> str:
        return text

    for line in RECORDED.read_text().splitlines():
        case = json.loads(line)
        messages = [
            template_message(message, same, same)
            for message in parse_chat(
                json.dumps({"model": "m", "messages": case["messages"]}).encode(),
                "r",
                ServedModel("m", 9, 9, 9),
            ).messages
        ]
        variables = {"enable_thinking": case["thinking"]}
        if case["effort"]:
            variables["reasoning_effort"] = case["effort"]
        if case["tools"]:
            variables["tools"] = case["tools"]
        text = DeepSeekTemplate(VERSIONS[case["version"]]).render(messages, variables)
        assert hashlib.sha256(text.encode()).hexdigest() == case["sha256"], line
