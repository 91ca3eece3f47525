"""How much a model is asked to reason: efforts and switches of a request to template variables."""

from __future__ import annotations

from collections.abc import Mapping

from dgpp.serve.errors import ApiError, invalid
from dgpp.serve.fields import Fields
from dgpp.serve.served import ServedModel
from dgpp.text.efforts import EFFORTS

_THINKING = ("enable_thinking", "thinking")
_HISTORY = (
    "preserve_thinking",
    "clear_thinking",
    "drop_thinking",
    "truncate_history_thinking",
    "preserve_reasoning",
)
SWITCHES = (*_THINKING, *_HISTORY)
"""The template variables, each true or false, that a client may set."""

Variables = dict[str, bool | str]


def chat_variables(fields: Fields, model: ServedModel) -> Variables:
    """The template variables of a chat request: its `reasoning_effort` and `chat_template_kwargs`
    over the server's. Raises ApiError naming the member."""
    effort, at = fields.one_of("reasoning_effort", EFFORTS), "reasoning_effort"
    given = fields.object("chat_template_kwargs")
    switches: Variables = {}
    if given is not None:
        switches = _switches(given)
        inner = given.one_of("reasoning_effort", EFFORTS)
        if inner is not None and effort not in (None, inner):
            path = given.path("reasoning_effort")
            raise invalid(f"{path} and reasoning_effort contradict each other", path)
        if effort is None:
            effort, at = inner, given.path("reasoning_effort")
    return variables(model, switches, effort, at)


def variables(
    model: ServedModel, switches: Mapping[str, bool | str], effort: str | None, at: str
) -> Variables:
    """The server's variables under `switches` and what `effort`, given at path `at`, stands for.
    Raises a 400 ApiError for an effort that the model does not know, or that a switch denies."""
    asked: Variables = {}
    if effort is not None:
        if effort not in model.efforts:
            raise _unknown(model, effort, at)
        asked = model.efforts[effort]
        for name, value in asked.items():
            if switches.get(name, value) != value:
                raise invalid(f"{at} {effort} contradicts {name} {switches[name]}", at)
    return {**model.template_kwargs, **switches, **asked}


def _unknown(model: ServedModel, effort: str, at: str) -> ApiError:
    known = ", ".join(model.efforts) or "none at all"
    message = f"{at}: this model does not know the effort {effort}; it knows {known}"
    return invalid(message, at, "unsupported_reasoning_effort")


def _switches(given: Fields) -> Variables:
    """The switches a client may set; the two names of the thinking switch become one."""
    given.only((*SWITCHES, "reasoning_effort"))
    found: Variables = {
        name: given.boolean(name) for name in SWITCHES if given.get(name) is not None
    }
    alias = found.pop("thinking", None)
    if alias is not None and found.setdefault("enable_thinking", alias) != alias:
        at = given.path("thinking")
        raise invalid(f"{at} and enable_thinking contradict each other", at)
    return found
