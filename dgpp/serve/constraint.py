"""From what a request asks of its answer to the grammar that holds the answer to it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

from dgpp.grammar.answer import Wanted, answer_grammar
from dgpp.grammar.errors import GrammarError
from dgpp.grammar.matcher import Grammars
from dgpp.serve.divisors import MOST, too_fine
from dgpp.serve.errors import ApiError, invalid
from dgpp.serve.request import GenerationRequest
from dgpp.text.codec import TextCodec
from dgpp.text.dialect import Dialect

_UNKNOWN = re.compile(r'Unimplemented keys: \["([^"]+)"')
_log = logging.getLogger("dgpp.tokenizer")


def constrains(request: GenerationRequest) -> bool:
    """Whether the answer is held to anything."""
    return _wanted(request).constrains


def grammar_of(
    request: GenerationRequest, codec: TextCodec, grammars: Grammars, *, reasoning: bool
) -> str:
    """The grammar of a constrained answer, compiled once, so that it is known to work.

    `reasoning`: the prompt leaves the think tag open. Raises ApiError naming the schema's keyword
    or the tool at fault.
    """
    wanted = _wanted(request)
    for at, schema in _schemas(request):
        if too_fine(schema):
            path = f"{at}{_path(schema, 'multipleOf') or ''}"
            text = f"{path} cannot be enforced: divisors together over {MOST}"
            raise invalid(text, path, "unsupported_schema")
    try:
        grammar = answer_grammar(wanted, codec.dialect, codec.tokenizer, reasoning=reasoning)
        grammars.compile(grammar)
    except GrammarError as error:
        raise _refusal(request, str(error), codec, grammars) from error
    _check_strict_tools(request, codec, grammars)
    _tell_what_is_passed_over(request, codec, grammars, wanted)
    return grammar


def _wanted(request: GenerationRequest) -> Wanted:
    answer = request.answer
    return Wanted(
        schema=None if answer is None else json.loads(answer.schema),
        strict=answer is not None and answer.strict,
        tools=request.offered,
        choice="required" if request.must_call else "auto",
        parallel=request.parallel,
    )


def _check_strict_tools(request: GenerationRequest, codec: TextCodec, grammars: Grammars) -> None:
    """A strict tool's parameters are a schema: where strings are written bare, its grammar asks for
    less than all of it, and a keyword that means nothing would pass for one that is not there."""
    for index, tool in enumerate(request.tools):
        parameters = json.loads(tool.definition).get("parameters")
        if not tool.strict or tool.custom or parameters is None or tool not in request.offered:
            continue
        whole = Wanted(schema=parameters)
        try:
            grammars.compile(answer_grammar(whole, Dialect(), codec.tokenizer, reasoning=False))
        except GrammarError as error:
            at = request.tool_paths[index]
            raise invalid(f"{at}: {_first_line(str(error))}", at, "unsupported_schema") from error


def _tell_what_is_passed_over(
    request: GenerationRequest, codec: TextCodec, grammars: Grammars, wanted: Wanted
) -> None:
    """A schema without `strict` may ask for what cannot be enforced: the log says so."""
    if request.answer is None or request.answer.strict:
        return
    strict = Wanted(schema=wanted.schema, strict=True)
    try:
        grammars.compile(answer_grammar(strict, Dialect(), codec.tokenizer, reasoning=False))
    except GrammarError as error:
        _log.warning("request %s: not enforced: %s", request.id, _first_line(str(error)))


def _refusal(
    request: GenerationRequest, message: str, codec: TextCodec, grammars: Grammars
) -> ApiError:
    """Which part of the request the compiler's `message` is about."""
    schemas = dict(_schemas(request))
    guilty = _guilty_tool(request, codec, grammars)
    if guilty is not None:
        index, message = guilty
        at, free = request.tool_paths[index], request.tools[index].grammar is not None
    else:
        at, free = next(iter(schemas), "tools"), False
    found = _UNKNOWN.search(message)
    path = None if found is None else _path(schemas.get(at), found.group(1))
    if path is not None and found is not None:
        text = f"{at}{path} cannot be enforced: {found.group(1)} is not supported"
        return invalid(text, f"{at}{path}", "unsupported_schema")
    code = "invalid_grammar" if free else "unsupported_schema"
    return invalid(f"{at}: {_first_line(message)}", at, code)


def _guilty_tool(
    request: GenerationRequest, codec: TextCodec, grammars: Grammars
) -> tuple[int, str] | None:
    """The first tool that has no grammar even alone, and why."""
    for index, tool in enumerate(request.tools):
        if tool not in request.offered:
            continue
        alone = Wanted(tools=(tool,), choice="required")
        try:
            grammars.compile(answer_grammar(alone, codec.dialect, codec.tokenizer, reasoning=False))
        except GrammarError as error:
            return index, str(error)
    return None


def _schemas(request: GenerationRequest) -> Iterator[tuple[str, Any]]:
    """The schemas of a request and where they stand in it."""
    if request.answer is not None:
        yield request.answer.path, json.loads(request.answer.schema)
    for path, tool in zip(request.tool_paths, request.tools, strict=True):
        yield path, json.loads(tool.definition).get("parameters")


def _path(schema: Any, keyword: str) -> str | None:
    """Where `keyword` first stands in `schema`, as a path behind the schema's own."""
    if isinstance(schema, dict):
        if keyword in schema:
            return f".{keyword}"
        for key, inner in schema.items():
            found = _path(inner, keyword)
            if found is not None:
                return f".{key}{found}"
    if isinstance(schema, list):
        for index, inner in enumerate(schema):
            found = _path(inner, keyword)
            if found is not None:
                return f"[{index}]{found}"
    return None


def _first_line(message: str) -> str:
    return message.splitlines()[0][:300] if message else "it cannot be compiled"
