"""Schemas of what is answered."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpp.serve.metrics import (
    CollectiveMetrics,
    NvmeCacheMetrics,
    PrefillMetrics,
    PrefixCacheMetrics,
    SchedulerMetrics,
    ServiceMetrics,
)

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
COUNT: Schema = {"type": "integer", "minimum": 0}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}


def array(items: Schema) -> Schema:
    """An array of `items`."""
    return {"type": "array", "items": items}


def known(*values: Any) -> Schema:
    """One of `values`."""
    return {"enum": list(values)}


def closed(optional: dict[str, Schema] | None = None, /, **members: Schema) -> Schema:
    """An object of exactly these members; `optional` ones may be absent."""
    return {
        "type": "object",
        "properties": {**members, **(optional or {})},
        "required": list(members),
        "additionalProperties": False,
    }


def ref(name: str) -> Schema:
    """The component `name`."""
    return {"$ref": f"#/components/schemas/{name}"}


_FINISH = known("stop", "length", "tool_calls")
_OR_NULL: Schema = {"type": "null"}

_USAGE = closed(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=closed({"cached_decoded_tokens": COUNT}, cached_tokens=COUNT),
    completion_tokens_details=closed(reasoning_tokens=COUNT),
)

_ALTERNATIVE = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT)}
_CHAT_LOGPROBS = closed(
    content=array(closed(**_ALTERNATIVE, top_logprobs=array(closed(**_ALTERNATIVE)))),
    refusal=_OR_NULL,
)
_LEGACY_LOGPROBS = closed(
    tokens=array(TEXT),
    token_logprobs=array({"type": ["number", "null"]}),
    top_logprobs={"type": ["array", "null"]},
    text_offset=array(COUNT),
)

_TOOL_CALL = {
    "oneOf": [
        closed(id=TEXT, type=known("function"), function=closed(name=TEXT, arguments=TEXT)),
        closed(id=TEXT, type=known("custom"), custom=closed(name=TEXT, input=TEXT)),
    ]
}

_OPTIONAL = {"service_tier": TEXT, "metadata": ANY_OBJECT, "timings": ref("Timings")}


def _completion(kind: str, **choice: Schema) -> Schema:
    choices = closed(index=COUNT, finish_reason=_FINISH, **choice)
    return closed(
        _OPTIONAL,
        id=TEXT,
        object=known(kind),
        created=COUNT,
        model=TEXT,
        system_fingerprint=_OR_NULL,
        choices=array(choices),
        usage=ref("Usage"),
    )


_CHAT_ANSWER = _completion(
    "chat.completion",
    message=closed(
        {"reasoning_content": TEXT, "tool_calls": array(_TOOL_CALL)},
        role=known("assistant"),
        content=TEXT_OR_NULL,
        refusal=_OR_NULL,
    ),
    logprobs={"anyOf": [_CHAT_LOGPROBS, _OR_NULL]},
)

_LEGACY_ANSWER = _completion(
    "text_completion", text=TEXT, logprobs={"anyOf": [_LEGACY_LOGPROBS, _OR_NULL]}
)

_TIMINGS = closed(
    cache_n=COUNT,
    prompt_n=COUNT,
    prompt_ms=NUMBER,
    prompt_per_token_ms=NUMBER,
    prompt_per_second=NUMBER,
    predicted_n=COUNT,
    predicted_ms=NUMBER,
    predicted_per_token_ms=NUMBER,
    predicted_per_second=NUMBER,
)

_RESPONSE = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "object": known("response"),
        "created_at": COUNT,
        "status": known("completed", "incomplete"),
        "model": TEXT,
        "output": array({"type": "object", "required": ["type"], "properties": {"type": TEXT}}),
        "usage": ANY_OBJECT,
        "store": known(False),
    },
    "required": ["id", "object", "created_at", "status", "model", "output", "usage", "store"],
}

_MESSAGE = closed(
    id=TEXT,
    type=known("message"),
    role=known("assistant"),
    model=TEXT,
    content=array(
        {
            "oneOf": [
                closed(type=known("text"), text=TEXT),
                closed(type=known("thinking"), thinking=TEXT, signature=TEXT),
                closed(type=known("tool_use"), id=TEXT, name=TEXT, input=ANY_OBJECT),
            ]
        }
    ),
    stop_reason=known("end_turn", "max_tokens", "stop_sequence", "tool_use"),
    stop_sequence=TEXT_OR_NULL,
    usage=closed(
        input_tokens=COUNT,
        cache_creation_input_tokens=COUNT,
        cache_read_input_tokens=COUNT,
        output_tokens=COUNT,
    ),
)

_MODEL = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "object": known("model"),
        "created": COUNT,
        "owned_by": TEXT,
        "input_modalities": array(TEXT),
        "context": closed(
            request_limit_tokens=COUNT,
            position_ceiling_tokens=COUNT,
            kv_pool_tokens=COUNT,
            limited_by=known("position-ceiling", "kv-pool"),
        ),
    },
    "required": ["id", "object", "created", "owned_by", "input_modalities", "context"],
}

_HEALTH = closed(
    {"reason": TEXT, "error": TEXT},
    status=known("starting", "ok", "degraded", "stalled", "leaving", "draining", "failed"),
    model=TEXT,
    live=FLAG,
    ready=FLAG,
)

_ERROR = closed(
    error=closed(message=TEXT, type=TEXT, param=TEXT_OR_NULL, code=TEXT_OR_NULL),
)
_ANTHROPIC_ERROR = closed(type=known("error"), error=closed(type=TEXT, message=TEXT))

_SECTIONS = {
    "scheduler": SchedulerMetrics,
    "service": ServiceMetrics,
    "prefix_cache": PrefixCacheMetrics,
    "prefill": PrefillMetrics,
    "nvme_cache": NvmeCacheMetrics,
    "collectives": CollectiveMetrics,
}


def schemas() -> dict[str, Schema]:
    """Every component, by name. The metrics' are read off their own types."""
    sections, parts = msgspec.json.schema_components(
        _SECTIONS.values(), ref_template="#/components/schemas/{name}"
    )
    return {
        "ChatAnswer": _CHAT_ANSWER,
        "CompletionAnswer": _LEGACY_ANSWER,
        "Response": _RESPONSE,
        "Message": _MESSAGE,
        "Usage": _USAGE,
        "Timings": _TIMINGS,
        "Model": _MODEL,
        "Models": closed(object=known("list"), data=array(ref("Model"))),
        "Health": _HEALTH,
        "Tokens": closed(count=COUNT, max_model_len=COUNT, tokens=array(COUNT)),
        "Text": closed(prompt=TEXT),
        "TokenCount": closed(input_tokens=COUNT),
        "Error": _ERROR,
        "AnthropicError": _ANTHROPIC_ERROR,
        "Metrics": closed(**dict(zip(_SECTIONS, sections, strict=True))),
        **parts,
    }
