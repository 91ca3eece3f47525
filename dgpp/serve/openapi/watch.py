"""Schemas of request bodies, written down while parsers read: what they check is what stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dgpp.serve.errors import ApiError
from dgpp.serve.fields import Body, Fields

Schema = dict[str, Any]
Read = Callable[[Body], object]


_NOTHING = {"description": "Only what changes nothing is taken."}


class Shape:
    """What is known of one object: its members, which of them are needed, whether others may be.

    Of objects that are read more than once, such as the entries of an array, a member may be what
    it was in any of them, and is needed where it was in all.
    """

    def __init__(self) -> None:
        self.inner: dict[str, Shape] = {}
        self.closed = False
        self._members: list[dict[str, Schema]] = []
        self._needed: list[set[str]] = []

    @property
    def members(self) -> dict[str, Schema]:
        """Those of the object that is being read."""
        return self._members[-1]

    def begin(self) -> None:
        """One more object of this shape is being read."""
        self._members.append({})
        self._needed.append(set())

    def need(self, name: str) -> None:
        self._needed[-1].add(name)

    def within(self, name: str) -> Shape:
        """The shape of what stands in `name`, or in its elements."""
        return self.inner.setdefault(name, Shape())

    def schema(self) -> Schema:
        """The schema of an object of this shape."""
        names = dict.fromkeys(name for members in self._members for name in members)
        made: Schema = {
            "type": "object",
            "properties": {name: self._member(name) for name in names},
        }
        if needed := sorted(set.intersection(*self._needed) if self._needed else set()):
            made["required"] = needed
        if self.closed:
            made["additionalProperties"] = False
        return made

    def _member(self, name: str) -> Schema:
        found: list[Schema] = []
        for members in self._members:
            if members.get(name) and members[name] not in found:
                found.append(members[name])
        # What is refused of one kind of entry is served of another.
        served = [one for one in found if not one.items() >= _NOTHING.items()]
        found = served or found
        made = [self._filled(name, one) for one in found]
        return made[0] if len(made) == 1 else {"anyOf": made} if made else {}

    def _filled(self, name: str, found: Schema) -> Schema:
        inside = self.inner.get(name)
        if inside is None or "type" not in found:
            return found
        if "array" in found["type"]:
            return {**found, "items": inside.schema()}
        return {**inside.schema(), **found}


class Watched(Fields):
    """Fields that note in a shape what is read of them, and how it is checked."""

    def __init__(self, members: dict[str, Any], path: str, shape: Shape) -> None:
        super().__init__(members, path)
        self._shape = shape
        shape.begin()

    def get(self, name: str) -> Any:
        self._shape.members.setdefault(name, {})
        return super().get(name)

    def boolean(self, name: str, default: bool = False) -> bool:
        self._note(name, "boolean")
        return super().boolean(name, default)

    def integer(self, name: str, low: int, high: int, *, but: int | None = None) -> int | None:
        besides = {} if but is None else {"not": {"const": but}}
        self._note(name, "integer", minimum=low, maximum=high, **besides)
        return super().integer(name, low, high, but=but)

    def number(self, name: str, low: float, high: float, *, above: bool = False) -> float | None:
        self._note(
            name, "number", **{"exclusiveMinimum" if above else "minimum": low}, maximum=high
        )
        return super().number(name, low, high, above=above)

    def text(self, name: str, *, longest: int | None = None) -> str | None:
        self._note(name, "string", **({} if longest is None else {"maxLength": longest}))
        return super().text(name, longest=longest)

    def needed_text(self, name: str, *, longest: int | None = None) -> str:
        found = super().needed_text(name, longest=longest)
        self._shape.need(name)
        self._shape.members[name]["type"] = "string"
        return found

    def array(self, name: str, longest: int) -> list[Any] | None:
        self._note(name, "array", maxItems=longest)
        return super().array(name, longest)

    def object(self, name: str) -> Fields | None:
        self._note(name, "object")
        return super().object(name)

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str | None:
        found = super().one_of(name, allowed)
        self._shape.members[name] = {"enum": [*allowed, None]}
        return found

    def refuse(self, name: str, neutral: tuple[Any, ...] = ()) -> None:
        super().refuse(name, neutral)
        self._shape.members[name] = {"enum": [*neutral, None], **_NOTHING}

    def only(self, known: tuple[str, ...]) -> None:
        self._shape.closed = True
        for name in known:
            self._shape.members.setdefault(name, {})
        super().only(known)

    def not_null(self, name: str) -> None:
        super().not_null(name)
        self._shape.members[name] = {"not_null": True}

    def _inner(self, name: str, members: dict[str, Any], path: str) -> Fields:
        return Watched(members, path, self._shape.within(name))

    def _note(self, name: str, kind: str, **bounds: Any) -> None:
        strict = self._shape.members.get(name, {}).get("not_null") or kind == "null"
        self._shape.members[name] = {"type": kind if strict else [kind, "null"], **bounds}


def read_schema(read: Read, bodies: Iterable[dict[str, Any]]) -> Schema:
    """The schema of what `read` takes, as it shows while it reads `bodies`, none of which it may
    refuse: a member is described where one of them has what stands around it. Needed is what none
    of them can do without."""
    bodies = list(bodies)
    shape = Shape()
    for body in bodies:
        read(Watched(body, "", shape))
    schema = shape.schema()
    needed = [name for name in bodies[0] if all(_refuses(read, body, name) for body in bodies)]
    for name in needed:
        kinds = schema["properties"][name].get("type")
        if isinstance(kinds, list):
            schema["properties"][name]["type"] = kinds[0]
    return {**schema, "required": needed}


def _refuses(read: Read, body: dict[str, Any], missing: str) -> bool:
    if missing not in body:
        return False
    try:
        read(Fields({name: value for name, value in body.items() if name != missing}))
    except ApiError:
        return True
    return False
