"""Which variables of a template each reasoning effort stands for, found by rendering with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dgpp.text.errors import TemplateError

if TYPE_CHECKING:
    # The front end, which knows efforts by name, has no use for jinja2.
    from dgpp.text.prompt_template import PromptTemplate

LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""From little to much."""
EFFORTS = ("none", *LEVELS)

_UNKNOWN = "quokka"
_PROBE = ({"role": "user", "content": "Zebra"},)

Switches = Mapping[str, bool | str]


def efforts_of(
    template: PromptTemplate, named: Mapping[str, str]
) -> dict[str, dict[str, bool | str]]:
    """The variables for each effort that the model knows; an effort that is missing is none.

    A level that the template does not know is the next one above it that it knows, else the
    highest. `none` and all levels are the thinking switch where the template has only that.
    `named` are the tokens that templates name (bos_token and the like).
    """
    switched = _differs(template, named, {"enable_thinking": False}, {"enable_thinking": True})
    on: dict[str, bool | str] = {"enable_thinking": True} if switched else {}
    found: dict[str, dict[str, bool | str]] = {}
    if switched:
        found["none"] = {"enable_thinking": False}
    known = [level for level in LEVELS if _knows(template, named, level)]
    for place, level in enumerate(LEVELS):
        if known:
            above = (name for name in known if LEVELS.index(name) >= place)
            found[level] = {**on, "reasoning_effort": next(above, known[-1])}
        elif switched:
            found[level] = dict(on)
    return found


def _knows(template: PromptTemplate, named: Mapping[str, str], level: str) -> bool:
    """Templates either refuse a level that they do not know or take it for another one."""
    if not template.reads("reasoning_effort"):
        return False
    text = _rendered(template, named, {"reasoning_effort": level})
    other = _rendered(template, named, {"reasoning_effort": _UNKNOWN})
    if text is None:
        return False
    return text != other or level in text.lower()


def _differs(
    template: PromptTemplate, named: Mapping[str, str], first: Switches, second: Switches
) -> bool:
    texts = [_rendered(template, named, both_names(one)) for one in (first, second)]
    return texts[0] != texts[1]


def both_names(variables: Switches) -> dict[str, bool | str]:
    """`variables` with the thinking switch under both names that templates have for it."""
    if "enable_thinking" not in variables:
        return dict(variables)
    return {**variables, "thinking": variables["enable_thinking"]}


def _rendered(
    template: PromptTemplate, named: Mapping[str, str], variables: Switches
) -> str | None:
    try:
        return template.render(_PROBE, {**named, **variables})
    except TemplateError:
        return None
