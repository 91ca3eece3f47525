"""Bodies of POST /v1/responses to requests."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from dgpp.sample.params import SamplingParams
from dgpp.serve import limits
from dgpp.serve.errors import invalid, model_not_found
from dgpp.serve.fields import Body, Fields
from dgpp.serve.jsonsafe import shorten
from dgpp.serve.options import ignored_fields
from dgpp.serve.reasoning import variables
from dgpp.serve.request import GenerationRequest, JsonAnswer
from dgpp.serve.response_format import json_schema_answer
from dgpp.serve.responses_api.items import parse_input
from dgpp.serve.served import ServedModel, with_top_p
from dgpp.serve.tools import parse_tools
from dgpp.text.efforts import EFFORTS
from dgpp.text.messages import Message

_KNOWN = frozenset(
    {"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream"}
    | {"max_output_tokens", "temperature", "top_p", "text", "reasoning", "metadata", "store"}
    | {"include", "user", "safety_identifier", "service_tier", "truncation", "background"}
    | {"previous_response_id", "conversation", "prompt", "stream_options", "prompt_cache_key"}
    | {"top_logprobs", "max_tool_calls"}
)
_REFUSED: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "max_tool_calls": (),
}
"""Fields that are not served, each with the values that change nothing. Nothing is stored here, so
that a response can be named by nobody: the client sends the whole conversation."""
_ECHOED = ("instructions", "max_output_tokens", "metadata", "tools", "tool_choice", "text", "user")


def parse_response(body: Body, id: str, model: ServedModel) -> GenerationRequest:  # noqa: A002
    """The request in `body`. Raises ApiError naming the field."""
    fields = Fields.of(body)
    name = fields.needed_text("model")
    if not model.answers_to(name):
        raise model_not_found(shorten(name))
    for field, neutral in _REFUSED.items():
        fields.refuse(field, neutral)
    fields.boolean("store", default=True)
    fields.array("include", limits.METADATA_KEYS)
    offer = parse_tools(fields)
    instructions = fields.text("instructions")
    system = (Message("system", instructions),) if instructions else ()
    return GenerationRequest(
        id=id,
        kind="responses",
        model=name,
        messages=(*system, *parse_input(fields)),
        template_kwargs=_reasoning(fields, model),
        max_tokens=fields.integer("max_output_tokens", 1, limits.MAX_TOKENS),
        max_tokens_field="max_output_tokens",
        sampling=_sampling(fields, model),
        stream=fields.boolean("stream"),
        ping_interval=model.ping_interval,
        answer=_text_format(fields),
        echo=json.dumps({key: fields.get(key) for key in _ECHOED if key in fields.members}),
        ignored=ignored_fields(fields, _KNOWN),
        **offer._asdict(),
    )


def _reasoning(fields: Fields, model: ServedModel) -> dict[str, bool | str]:
    form = fields.object("reasoning")
    effort = None if form is None else form.one_of("effort", EFFORTS)
    return variables(model, {}, effort, "reasoning.effort")


def _sampling(fields: Fields, model: ServedModel) -> SamplingParams:
    asked = {
        "temperature": fields.number("temperature", 0.0, 2.0),
        "top_p": fields.number("top_p", 0.0, 1.0),
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if 0.0 < given.get("temperature", 1.0) < limits.LEAST_TEMPERATURE:
        given["temperature"] = 0.0
    return with_top_p(replace(model.sampling, **given))


def _text_format(fields: Fields) -> JsonAnswer | None:
    text = fields.object("text")
    form = None if text is None else text.object("format")
    if text is None or form is None:
        return None
    kind = form.one_of("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise invalid(f"{form.path('type')} is required", form.path("type"))
    if kind == "json_schema":
        return json_schema_answer(form)
    # This form is flat: what belongs to a schema may stand beside another type, and must be sound.
    form.text("name")
    form.text("description")
    form.boolean("strict")
    if not isinstance(form.get("schema"), (dict, bool, type(None))):
        raise invalid(f"{form.path('schema')} must be a schema", form.path("schema"))
    return JsonAnswer("{}", text.path("format")) if kind == "json_object" else None
