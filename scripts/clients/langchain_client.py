"""langchain-openai: chat, streams, tools, structured output, reasoning.

usage: python langchain_client.py BASE MODEL CALLING_BASE CALLING_MODEL
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

BASE, MODEL, CALLING_BASE, CALLING_MODEL = sys.argv[1:]
CAPITAL = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    city: str
    inhabitants: int | None


@tool
def get_weather(city: str, days: int) -> str:
    """Weather."""
    return f"{city}: dry for {days} days"


def chat(**more: object) -> ChatOpenAI:
    asked = {"model": MODEL, "base_url": f"{BASE}/v1", "max_tokens": 24, **more}
    return ChatOpenAI(api_key="none", temperature=0, max_retries=0, **asked)


def text_whole_and_streamed() -> str:
    whole = chat().invoke(CAPITAL)
    chunks = list(chat(stream_usage=True).stream(CAPITAL))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.content == whole.content
    assert joined.usage_metadata == whole.usage_metadata
    return str(whole.content)


def a_tool_call_and_its_result() -> None:
    caller = chat(model=CALLING_MODEL, base_url=f"{CALLING_BASE}/v1", max_tokens=400)
    bound = caller.bind_tools([get_weather])
    whole = bound.invoke("Weather?")
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Köln", "days": 3})
    joined = None
    for chunk in bound.stream("Weather?"):
        joined = chunk if joined is None else joined + chunk
    assert joined is not None
    assert joined.tool_calls[0]["args"] == call["args"]
    history = [("user", "Weather?"), whole, ToolMessage("dry", tool_call_id=call["id"])]
    bound.invoke(history)


def structured_output() -> str:
    found = chat(max_tokens=120).with_structured_output(City, method="json_schema").invoke("Paris")
    assert isinstance(found, City)
    return found.model_dump_json()


def responses() -> None:
    found = chat(use_responses_api=True).invoke(CAPITAL)
    assert "Paris" in found.text


def completions() -> None:
    model = OpenAI(
        model=MODEL, base_url=f"{BASE}/v1", api_key="none", temperature=0, max_tokens=8,
        max_retries=0,
    )  # fmt: skip
    whole = model.invoke("The capital of France is")
    assert "".join(model.stream("The capital of France is")) == whole
    assert "Paris" in whole


def logprobs() -> None:
    found = chat(logprobs=True, top_logprobs=2).invoke(CAPITAL)
    entries = found.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == found.content


CHECKS: list[Callable[[], str | None]] = [
    text_whole_and_streamed,
    a_tool_call_and_its_result,
    structured_output,
    responses,
    completions,
    logprobs,
]

failed = 0
for check in CHECKS:
    what = check.__name__.replace("_", " ")
    try:
        said = check()
    except Exception:  # noqa: BLE001 - one check of several
        failed += 1
        print(f"langchain-openai: {what}: FAILED: {traceback.format_exc()}")
    else:
        print(f"langchain-openai: {what}: ok" + (f" ({said})" if said else ""))
sys.exit(bool(failed))
