"""The request fields that chat and legacy completions share."""

from __future__ import annotations

import re
from typing import Any

from dgpp.sample.params import SamplingParams
from dgpp.serve import limits
from dgpp.serve.errors import invalid, model_not_found
from dgpp.serve.fields import Fields
from dgpp.serve.jsonsafe import shorten
from dgpp.serve.served import ServedModel, with_top_p

SHARED = frozenset(
    {"model", "stream", "stream_options", "sse_ping_interval", "stop", "seed", "max_tokens"}
    | {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"}
    | {"frequency_penalty", "logit_bias", "logprobs", "n", "ignore_eos", "prefix_cache"}
    | {"cache_prompt", "min_tokens", "priority", "timeout_s"}
)
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def shared_options(fields: Fields, model: ServedModel, logprobs: int) -> dict[str, Any]:
    """Members of a GenerationRequest that both APIs read alike. Raises ApiError (400, 404)."""
    name = fields.needed_text("model")
    if not model.answers_to(name):
        raise model_not_found(shorten(name))
    for extension in ("ignore_eos", "prefix_cache"):
        fields.not_null(extension)
    return {
        "model": name,
        "sampling": _sampling(fields, model, logprobs),
        "seed": fields.integer("seed", -(2**63), 2**63 - 1),
        "stop": _stop(fields),
        "ignore_eos": fields.boolean("ignore_eos"),
        "prefix_cache": _prefix_cache(fields),
        "timeout_s": fields.number("timeout_s", 0.0, limits.TIMEOUT_S, above=True),
        "priority": fields.integer("priority", -limits.PRIORITY, limits.PRIORITY) or 0,
        **_streaming(fields, model),
    }


def _prefix_cache(fields: Fields) -> bool:
    """By either of the names that clients have for it."""
    told = fields.boolean("cache_prompt", default=True)
    wanted = fields.boolean("prefix_cache", default=told)
    if wanted != told and fields.get("cache_prompt") is not None:
        raise invalid("prefix_cache and cache_prompt contradict each other", "cache_prompt")
    return wanted


def _streaming(fields: Fields, model: ServedModel) -> dict[str, Any]:
    stream = fields.boolean("stream")
    options = fields.object("stream_options")
    ping = fields.integer("sse_ping_interval", -1, limits.PING_INTERVAL, but=0)
    for name, value in (("stream_options", options), ("sse_ping_interval", ping)):
        if value is not None and not stream:
            raise invalid(f"{name} needs stream to be true", name)
    found = {"stream": stream, "ping_interval": model.ping_interval if ping is None else ping}
    if options is not None:
        options.only(("include_usage", "include_obfuscation"))
        found["include_usage"] = options.boolean("include_usage")
        found["include_obfuscation"] = options.boolean("include_obfuscation")
    return found


def _sampling(fields: Fields, model: ServedModel, logprobs: int) -> SamplingParams:
    asked = {
        "temperature": fields.number("temperature", 0.0, 2.0),
        "top_p": fields.number("top_p", 0.0, 1.0),
        "top_k": fields.integer("top_k", 0, limits.TOP_K),
        "min_p": fields.number("min_p", 0.0, 1.0),
        "repetition_penalty": fields.number(
            "repetition_penalty", limits.LEAST_REPETITION_PENALTY, limits.REPETITION_PENALTY
        ),
        "presence_penalty": fields.number("presence_penalty", -2.0, 2.0),
        "frequency_penalty": fields.number("frequency_penalty", -2.0, 2.0),
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if 0.0 < given.get("temperature", 1.0) < limits.LEAST_TEMPERATURE:
        given["temperature"] = 0.0
    least = fields.integer("min_tokens", 0, limits.MAX_TOKENS) or 0
    base = model.sampling
    defaults = {name: getattr(base, name) for name in asked}
    bias = _logit_bias(fields, model.vocab_size)
    own: dict[str, Any] = {"logprobs": logprobs, "logit_bias": bias, "min_tokens": least}
    return with_top_p(SamplingParams(**{**defaults, **given}, **own))


def _logit_bias(fields: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    entries = fields.object("logit_bias")
    if entries is None:
        return ()
    if len(entries.members) > limits.LOGIT_BIAS_IDS:
        message = f"logit_bias has {len(entries.members)} ids, the limit is {limits.LOGIT_BIAS_IDS}"
        raise invalid(message, "logit_bias")
    found = []
    for key in entries.members:
        if not _TOKEN_ID.fullmatch(key) or int(key) >= vocab_size:
            message = f"logit_bias: {shorten(key)!r} is not a token id from 0 to {vocab_size - 1}"
            raise invalid(message, "logit_bias")
        value = entries.number(key, -limits.LOGIT_BIAS, limits.LOGIT_BIAS)
        if value is None:
            raise invalid(f"{entries.path(key)} must be a number", "logit_bias")
        found.append((int(key), value))
    return tuple(sorted(found))


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    texts = value if isinstance(value, list) else [value]
    if not 1 <= len(texts) <= limits.STOP_STRINGS:
        raise invalid(f"stop must be a string or 1 to {limits.STOP_STRINGS} strings", "stop")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise invalid("stop must hold strings that are not empty", "stop")
        size = len(text.encode())
        if size > limits.STOP_BYTES:
            message = f"a stop string has {size} bytes, the limit is {limits.STOP_BYTES}"
            raise invalid(message, "stop")
    return tuple(dict.fromkeys(texts))


def ignored_fields(fields: Fields, known: frozenset[str]) -> int:
    """How many members the client sent that mean nothing here."""
    return sum(name not in known for name in fields.members)
