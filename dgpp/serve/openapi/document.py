"""The OpenAPI document of this server: GET /openapi.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dgpp.serve import limits
from dgpp.serve.anthropic.request import parse_count, parse_messages
from dgpp.serve.chat import parse_chat
from dgpp.serve.completions import parse_completion
from dgpp.serve.fields import Body
from dgpp.serve.openapi import examples
from dgpp.serve.openapi.answers import Schema, array, ref, schemas
from dgpp.serve.openapi.files import FILE_SCHEMAS, file_paths
from dgpp.serve.openapi.watch import read_schema
from dgpp.serve.reasoning import SWITCHES
from dgpp.serve.request import GenerationRequest
from dgpp.serve.responses_api.request import parse_response
from dgpp.serve.served import ServedModel
from dgpp.serve.tokens import parse_detokenize, parse_tokenize

Parse = Callable[[Body, str, ServedModel], GenerationRequest]
Bodies = dict[str, dict[str, Any]]

JSON, EVENTS, PLAIN = "application/json", "text/event-stream", "text/plain"


class Post(NamedTuple):
    """A path that reads a JSON body. `changes` says of members what reading them cannot show."""

    path: str
    name: str
    summary: str
    parse: Parse
    examples: Callable[[str], Bodies]
    answer: str
    streams: bool = False
    generates: bool = False
    changes: Callable[[ServedModel], dict[str, Schema]] = lambda _model: {}
    error: str = "Error"


class Get(NamedTuple):
    """A path that only answers. `statuses` are those beside 200 that it has a body for."""

    path: str
    name: str
    summary: str
    answer: Schema
    kind: str = JSON
    statuses: dict[int, str] = {}  # noqa: RUF012 - a constant


def _detokenize(body: Body, _id: str, model: ServedModel) -> GenerationRequest:
    parse_detokenize(body, model)
    return GenerationRequest(id="", kind="completion", model=model.id)


_SWITCH: Schema = {"type": ["boolean", "null"]}


def _token(model: ServedModel) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": model.vocab_size - 1}


def _stop(most: int) -> Schema:
    text = {"type": "string", "minLength": 1, "maxLength": limits.STOP_BYTES}
    return {"anyOf": [text, {**array(text), "minItems": 1, "maxItems": most}, {"type": "null"}]}


def _names(model: ServedModel) -> Schema:
    return {"enum": [model.id, *model.aliases]}


def _parts() -> Schema:
    part = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}
    return {"anyOf": [{"type": "string"}, {**array(part), "maxItems": limits.CONTENT_PARTS}]}


def _shared(model: ServedModel) -> dict[str, Schema]:
    bias = {"type": "number", "minimum": -limits.LOGIT_BIAS, "maximum": limits.LOGIT_BIAS}
    return {
        "model": _names(model),
        "stop": _stop(limits.STOP_STRINGS),
        "logit_bias": {
            "type": ["object", "null"],
            "maxProperties": limits.LOGIT_BIAS_IDS,
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": bias,
        },
    }


def _chat_changes(model: ServedModel) -> dict[str, Schema]:
    return {
        **_shared(model),
        "messages.content": {"anyOf": [_parts(), {"type": "null"}]},
        "messages.tool_calls.function.arguments": {"type": ["string", "object"]},
        "metadata": _metadata(),
        "tool_choice": _tool_choice(),
        "response_format.json_schema.schema": {"type": ["object", "boolean"]},
        **{f"chat_template_kwargs.{name}": _SWITCH for name in SWITCHES},
    }


def _tool_choice() -> Schema:
    words = {"enum": ["auto", "none", "required", None]}
    return {"anyOf": [words, {"type": "object", "required": ["type"]}]}


def _metadata() -> Schema:
    value = {"type": "string", "maxLength": limits.METADATA_VALUE_CHARS}
    return {
        "type": ["object", "null"],
        "maxProperties": limits.METADATA_KEYS,
        "propertyNames": {"maxLength": limits.METADATA_KEY_CHARS},
        "additionalProperties": value,
    }


def _completion_changes(model: ServedModel) -> dict[str, Schema]:
    ids = {**array(_token(model)), "minItems": 1}
    several = {"minItems": 1, "maxItems": limits.CHOICES}
    prompts = [{"type": "string"}, ids, {**array({"type": "string"}), **several}]
    return {**_shared(model), "prompt": {"anyOf": [*prompts, {**array(ids), **several}]}}


def _response_changes(model: ServedModel) -> dict[str, Schema]:
    items = {**array({"type": "object"}), "minItems": 1, "maxItems": limits.MESSAGES}
    return {
        "model": _names(model),
        "input": {"anyOf": [{"type": "string"}, items]},
        "tool_choice": _tool_choice(),
        "text.format.schema": {"type": ["object", "boolean"]},
    }


def _message_changes(model: ServedModel) -> dict[str, Schema]:
    return {
        "model": _names(model),
        "system": {"anyOf": [_parts(), {"type": "null"}]},
        "messages.content": _parts(),
    }


POSTS = (
    Post(
        "/v1/chat/completions",
        "createChatCompletion",
        "OpenAI chat, whole or streamed",
        parse_chat,
        examples.chat,
        "ChatAnswer",
        streams=True,
        generates=True,
        changes=_chat_changes,
    ),
    Post(
        "/v1/completions",
        "createCompletion",
        "OpenAI legacy completions",
        parse_completion,
        examples.completion,
        "CompletionAnswer",
        streams=True,
        generates=True,
        changes=_completion_changes,
    ),
    Post(
        "/v1/responses",
        "createResponse",
        "OpenAI responses; nothing is stored",
        parse_response,
        examples.responses,
        "Response",
        streams=True,
        generates=True,
        changes=_response_changes,
    ),
    Post(
        "/v1/messages",
        "createMessage",
        "Anthropic messages",
        parse_messages,
        examples.messages,
        "Message",
        streams=True,
        generates=True,
        changes=_message_changes,
        error="AnthropicError",
    ),
    Post(
        "/v1/messages/count_tokens",
        "countTokens",
        "The tokens of such a prompt",
        parse_count,
        examples.messages,
        "TokenCount",
        changes=_message_changes,
        error="AnthropicError",
    ),
    Post("/tokenize", "tokenize", "Text to tokens", parse_tokenize, examples.tokenize, "Tokens"),
    Post("/detokenize", "detokenize", "Tokens to text", _detokenize, examples.detokenize, "Text"),
)

_HEALTH = {503: "Health"}
GETS = (
    Get("/v1/models", "listModels", "What is served", ref("Models")),
    Get("/v1/models/{id}", "getModel", "One model", ref("Model"), statuses={404: "Error"}),
    Get("/health", "health", "Whether to send requests", ref("Health"), statuses=_HEALTH),
    Get("/health/ready", "ready", "The same", ref("Health"), statuses=_HEALTH),
    Get("/health/live", "live", "Whether to restart", ref("Health"), statuses=_HEALTH),
    Get("/metrics", "metrics", "Counters; Prometheus' form for who accepts text", ref("Metrics")),
    Get("/v1/metrics", "metricsV1", "The same", ref("Metrics")),
    Get("/metrics/prometheus", "prometheus", "For Prometheus", {"type": "string"}, PLAIN),
    Get("/prometheus/metrics", "scraped", "The same", {"type": "string"}, PLAIN),
    Get("/openapi.json", "openapi", "This document", {"type": "object"}),
)

_REFUSALS = {
    400: "Malformed, out of range, or not served; `param` names the member",
    401: "No API key, or one that is not known",
    403: "Host or Origin names another host, where no keys are asked for",
    404: "Another model, or no such file",
    408: "The body came too slowly, or a PDF took too long",
    411: "No Content-Length",
    413: "The body, or a file, is too large",
    415: "A Content-Encoding, or a Content-Type that is not served",
    431: "The head is too large",
    500: "An error of the server's",
    501: "A Transfer-Encoding",
    503: "Overloaded, starting, shutting down, or failed; Retry-After where it helps",
    504: "Not complete within the request's own `timeout_s`",
}
_OF_ANY = (400, 401, 403, 431, 500, 503)
_OF_BODIES = (404, 408, 411, 413, 415, 501)


def document(model: ServedModel, version: str) -> dict[str, Any]:
    """The whole document, for one model."""
    paths: dict[str, Any] = {post.path: {"post": _post(post, model)} for post in POSTS}
    paths |= {get.path: {"get": _get(get)} for get in GETS}
    paths |= file_paths(_OF_ANY, _OF_BODIES, lambda statuses: _refusals(statuses, "Error"))
    return {
        "openapi": "3.1.0",
        "info": {"title": "dgpp", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas() | FILE_SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # The empty one: a server without http.api_key_file asks for none.
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _post(post: Post, model: ServedModel) -> dict[str, Any]:
    bodies = post.examples(model.id)
    schema = read_schema(lambda body: post.parse(body, "x", model), bodies.values())
    for path, change in post.changes(model).items():
        _change(schema, path.split("."), change)
    answers = {JSON: {"schema": ref(post.answer)}}
    if post.streams:
        # Of one event: its fields by name.
        answers[EVENTS] = {"schema": {"type": "object", "required": ["data"]}}
    statuses = (*_OF_ANY, *_OF_BODIES, *((504,) if post.generates else ()))
    return {
        "operationId": post.name,
        "summary": post.summary,
        "requestBody": {
            "required": True,
            "content": {
                JSON: {
                    "schema": schema,
                    "examples": {
                        name: {"value": body}
                        for name, body in bodies.items()
                        if model.tools or "tools" not in body
                    },
                }
            },
        },
        "responses": {
            "200": {"description": "The answer", "content": answers},
            **_refusals(statuses, post.error),
        },
    }


def _get(get: Get) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": get.name,
        "summary": get.summary,
        "responses": {
            "200": {"description": "The answer", "content": {get.kind: {"schema": get.answer}}},
            **_refusals(_OF_ANY, "Error"),
            **{str(s): _refusals((s,), name)[str(s)] for s, name in get.statuses.items()},
        },
    }
    if "{id}" in get.path:
        text = {"type": "string", "minLength": 1}
        where = {"name": "id", "in": "path", "required": True, "schema": text}
        found["parameters"] = [where]
    return found


def _refusals(statuses: tuple[int, ...], schema: str) -> dict[str, Any]:
    content = {JSON: {"schema": ref(schema)}}
    return {str(s): {"description": _REFUSALS[s], "content": content} for s in sorted(statuses)}


def _change(schema: Schema, path: list[str], change: Schema) -> None:
    """Put `change` where `path` leads, through objects and the entries of arrays."""
    *way, last = path
    for name in way:
        schema = schema["properties"][name]
        schema = schema.get("items", schema)
    schema["properties"][last] = change
