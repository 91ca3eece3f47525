"""A model's chat template: jinja2 in the immutable sandbox, with what templates rely on."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from dgpp.checkpoint.json_file import read_object
from dgpp.text.errors import TemplateError, TokenizerError
from dgpp.text.metered import METER, Meter, MeteredEnvironment
from dgpp.text.spelled import to_json

_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)
"""What a template's own code raises; anything else is a fault of ours."""


class ChatTemplate:
    """A compiled template. Safe to render from several threads."""

    def __init__(self, source: str) -> None:
        """Raises TemplateError with the line where `source` is not a template."""
        self.source = source
        try:
            self._template = _environment().from_string(source)
        except _FAULTS as error:
            line = getattr(error, "lineno", "?")
            raise TemplateError(f"chat template, line {line}: {error}") from error

    @classmethod
    def load(cls, model_dir: str | Path) -> ChatTemplate | None:
        """From chat_template.jinja, chat_template.json or tokenizer_config.json, in this order;
        None where none holds one. Nothing a request brings is ever compiled."""
        folder = Path(model_dir)
        try:
            return cls((folder / "chat_template.jinja").read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"cannot read {folder}/chat_template.jinja: {error}") from error
        for name in ("chat_template.json", "tokenizer_config.json"):
            source = _default_of((read_object(folder / name) or {}).get("chat_template"))
            if source is not None:
                return cls(source)
        return None

    def reads(self, name: str) -> bool:
        """Whether `name` occurs in the template as a word of its own."""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        now: float = 0.0,
        meter: Meter | None = None,
    ) -> str:
        """The prompt for `messages`, as dicts that templates read.

        `variables` are further names of the template: its switches, bos_token and the like.
        `now` (Unix seconds) is the time that `strftime_now` tells. `meter` bounds the work, by
        default with the limits of `dgpp.text.metered`. Raises TemplateError.
        """
        meter = meter or Meter()
        given = {**variables, "messages": messages, "add_generation_prompt": True}
        given |= {METER: meter, "strftime_now": _clock(now)}
        parts: list[str] = []
        try:
            for part in self._template.generate(given):
                meter.size -= len(part)
                if meter.size < 0:
                    raise TemplateError("the rendered prompt is too long")
                parts.append(part)
        except _FAULTS as error:
            raise TemplateError(f"chat template: {error}") from error
        return "".join(parts)


def _default_of(found: Any) -> str | None:
    """A template may stand alone or in a list of named ones, of which `default` is meant."""
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("default")
    return found if isinstance(found, str) else None


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks answers for training; here it shows them."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        """The body alone, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> MeteredEnvironment:
    environment = MeteredEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Python's json without HTML escapes, which is what models were trained on; a value that
    remembers how it was written stays so."""
    if not (ensure_ascii or sort_keys or indent or separators):
        return to_json(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)


def _clock(now: float) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        return dt.datetime.fromtimestamp(now).astimezone().strftime(form)

    return strftime_now
