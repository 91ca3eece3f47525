"""A jinja2 environment in which a template's work and output are bounded.

A template cannot be interrupted from outside the thread it runs in, so it counts for itself: each
turn of a loop, each call and each operator is one step, and texts it builds have a largest size.
The bound is a number of steps, not of seconds: the same conversation always meets it at the same
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

STEP_LIMIT = 2_000_000
"""About two seconds of work. Real templates take 20 to 100 steps a message."""

OUTPUT_LIMIT = 64 << 20
"""Characters of a rendered prompt, and of any text on the way to it."""


class Meter:
    """The work left to one rendering."""

    def __init__(self, steps: int = STEP_LIMIT, size: int = OUTPUT_LIMIT) -> None:
        self.steps = steps
        self.size = size

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TemplateRuntimeError("the template needs too many steps")

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """`items`, a step for each."""
        for item in items:
            self.step()
            yield item

    def sized(self, text: Any) -> Any:
        """`text`, unless it is too long to go on with."""
        if isinstance(text, (str, list, tuple)) and len(text) > self.size:
            raise TemplateRuntimeError(f"the template builds more than {self.size} characters")
        return text


METER = "_dgpp_meter"


@pass_context
def _each(context: Context, items: Iterable[Any]) -> Iterable[Any]:
    meter = context.get(METER)
    return meter.each(items) if isinstance(meter, Meter) else items


@pass_context
def _sized(context: Context, text: Any) -> Any:
    meter = context.get(METER)
    return meter.sized(text) if isinstance(meter, Meter) else text


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """The immutable sandbox with a Meter, which each rendering brings as the variable METER."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters.update(_dgpp_each=_each, _dgpp_sized=_sized)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _through("each", loop.iter)
        _wrap_concats(tree)
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call a template makes. A huge number is the size of something it would build,
        except where it is handed to the template's own macro."""
        meter = context.get(METER)
        if isinstance(meter, Meter):
            meter.step()
            for value in () if isinstance(obj, Macro) else (*args, *kwargs.values()):
                if isinstance(value, int) and abs(value) > meter.size:
                    raise TemplateRuntimeError(f"the template asks for {value} of something")
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`*`, `**` and `+`, refused where the result would be too large to hold."""
        meter = context.get(METER)
        if isinstance(meter, Meter):
            meter.step()
            _check_growth(operator, left, right, meter)
            return meter.sized(super().call_binop(context, operator, left, right))
        return super().call_binop(context, operator, left, right)


def _through(method: str, value: nodes.Node) -> nodes.Expr:
    """The expression `value` as `METER.method(value)`, past the sandbox's own call."""
    return nodes.Filter(
        cast("nodes.Expr", value), f"_dgpp_{method}", [], [], None, None, lineno=value.lineno
    )


def _wrap_concats(tree: nodes.Node) -> None:
    for parent in list(tree.find_all(nodes.Node)):
        for field, value in parent.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _through("sized", value))
            elif isinstance(value, list):
                value[:] = [
                    _through("sized", item) if isinstance(item, nodes.Concat) else item
                    for item in value
                ]


def _check_growth(operator: str, left: Any, right: Any, meter: Meter) -> None:
    if operator == "**" and not (isinstance(right, (int, float)) and abs(right) <= 64):
        raise TemplateRuntimeError(f"the template raises to the power {right}")
    if operator != "*":
        return
    for text, count in ((left, right), (right, left)):
        if not isinstance(text, (str, list, tuple)) or not isinstance(count, int):
            continue
        if len(text) * count > meter.size:
            raise TemplateRuntimeError(f"the template builds more than {meter.size} characters")
