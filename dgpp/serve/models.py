"""The objects of /v1/models."""

from __future__ import annotations

from typing import Any

from dgpp.serve.errors import model_not_found
from dgpp.serve.served import ServedModel


def model_object(model: ServedModel) -> dict[str, Any]:
    """What `model` is, what it can do here and what it is asked by default."""
    sampling = model.sampling
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "dgpp",
        "sampling": {
            "available": True,
            "defaults": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
            },
        },
        "tools": {"available": model.tools, "constrained": model.tools},
        "response_format": {"json_object": model.text, "json_schema": model.text},
        "reasoning": {"in_content": model.reasoning_in_content, "effort_mapping": model.efforts},
        "default_chat_template_kwargs": model.template_kwargs,
        "input_modalities": ["text"],
        "context": {
            "request_limit_tokens": model.request_limit,
            "position_ceiling_tokens": model.position_ceiling,
            "kv_pool_tokens": model.kv_pool_tokens,
            "limited_by": "kv-pool" if model.pool_limited else "position-ceiling",
        },
    }


def model_list(model: ServedModel) -> dict[str, Any]:
    """The answer to GET /v1/models."""
    return {"object": "list", "data": [model_object(model)]}


def find_model(model: ServedModel, name: str) -> dict[str, Any]:
    """The answer to GET /v1/models/{name}. Raises ApiError (404) for another name."""
    if not model.answers_to(name):
        raise model_not_found(name)
    return model_object(model)
