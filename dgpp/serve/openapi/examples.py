"""Bodies that the document shows, and from which its schemas are read: each is answered."""

from __future__ import annotations

from typing import Any

Bodies = dict[str, dict[str, Any]]

_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}


def chat(model: str) -> Bodies:
    """Of POST /v1/chat/completions."""
    question = [{"role": "user", "content": "Name a colour."}]
    ask: dict[str, Any] = {"model": model, "messages": question, "max_tokens": 8}
    tools: list[dict[str, Any]] = [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather of a city.",
                "parameters": _WEATHER,
            },
        }
    ]
    return {
        "plain": ask,
        "streamed": {**ask, "stream": True, "stream_options": {"include_usage": True}},
        "sampled": {
            **ask,
            "temperature": 0.8,
            "top_p": 0.95,
            "seed": 7,
            "stop": ["\n\n"],
            "logit_bias": {"5": -100},
            "logprobs": True,
            "top_logprobs": 2,
            "metadata": {"purpose": "an example"},
        },
        "conversation with calls": {
            **ask,
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "snow"},
            ],
            "tools": tools,
            "tool_choice": "auto",
        },
        "structured": {
            **ask,
            "max_tokens": 64,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "colour", "schema": {"type": "boolean"}},
            },
        },
        "thinking off": {**ask, "chat_template_kwargs": {"enable_thinking": False}},
    }


def completion(model: str) -> Bodies:
    """Of POST /v1/completions."""
    ask = {"model": model, "prompt": "Once upon a time", "max_tokens": 8}
    return {
        "text": ask,
        "token ids": {**ask, "prompt": [1, 2, 3], "logprobs": 2, "logit_bias": {"5": 1}},
        "several": {**ask, "prompt": ["one", "two"]},
        "streamed": {**ask, "stream": True, "stream_options": {"include_usage": True}},
    }


def responses(model: str) -> Bodies:
    """Of POST /v1/responses."""
    ask = {"model": model, "input": "Name a colour.", "max_output_tokens": 8}
    tool = {"type": "function", "name": "weather", "parameters": _WEATHER}
    return {
        "plain": ask,
        "streamed": {**ask, "stream": True, "instructions": "Be short."},
        "conversation": {
            **ask,
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
                {
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": "weather",
                    "arguments": '{"city": "Oslo"}',
                },
                {"type": "function_call_output", "call_id": "call_1", "output": "snow"},
            ],
            "tools": [tool],
        },
        "structured": {
            **ask,
            "max_output_tokens": 64,
            "text": {
                "format": {"type": "json_schema", "name": "yes", "schema": {"type": "boolean"}}
            },
        },
    }


def messages(model: str) -> Bodies:
    """Of POST /v1/messages."""
    question = [{"role": "user", "content": "Name a colour."}]
    ask: dict[str, Any] = {"model": model, "messages": question, "max_tokens": 8}
    tool = {"name": "weather", "description": "The weather.", "input_schema": _WEATHER}
    used = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "snow"}
    return {
        "plain": ask,
        "streamed": {**ask, "stream": True, "system": [{"type": "text", "text": "Be short."}]},
        "conversation with calls": {
            **ask,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
                {"role": "assistant", "content": [used]},
                {"role": "user", "content": [result]},
            ],
            "tools": [tool],
            "tool_choice": {"type": "auto"},
            "stop_sequences": ["END"],
            "thinking": {"type": "disabled"},
        },
    }


def tokenize(model: str) -> Bodies:
    """Of POST /tokenize."""
    return {
        "text": {"prompt": "Once upon a time"},
        "messages": {"messages": [{"role": "user", "content": "Name a colour."}]},
    }


def detokenize(model: str) -> Bodies:
    """Of POST /detokenize."""
    return {"ids": {"tokens": [1, 2, 3]}}
