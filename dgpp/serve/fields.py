"""Typed, range-checked reading of a JSON object's members; every error names its path."""

from __future__ import annotations

from typing import Any

from dgpp.serve.errors import invalid, unsupported
from dgpp.serve.jsonsafe import parse_object, shorten


class Fields:
    """The members of one JSON object. A member that is null counts as omitted."""

    def __init__(self, members: dict[str, Any], path: str = "") -> None:
        self.members = members
        self._path = path

    @classmethod
    def of(cls, body: Body) -> Fields:
        """The members of a request's body. Raises ApiError (400) for what is no JSON object."""
        return body if isinstance(body, Fields) else cls(parse_object(body))

    def path(self, name: str) -> str:
        """Where `name` stands in the request."""
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        """The value of `name`, None where it is null or absent."""
        return self.members.get(name)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(f"{self.path(name)} must be a boolean", self.path(name))
        return value

    def integer(self, name: str, low: int, high: int, *, but: int | None = None) -> int | None:
        """An integer in [low, high] that is not `but`."""
        value = self.get(name)
        if value is None:
            return None
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or not low <= value <= high or value == but:
            at = self.path(name)
            besides = "" if but is None else f" and not {but}"
            raise invalid(f"{at} must be an integer from {low} to {high}{besides}", at)
        return int(value)

    def number(self, name: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A number in [low, high], or in (low, high] where it must be `above` the bound."""
        value = self.get(name)
        if value is None:
            return None
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not fits or not low <= value <= high or (above and value == low):
            at = self.path(name)
            span = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise invalid(f"{at} must be a number {span}", at)
        return float(value)

    def text(self, name: str, *, longest: int | None = None) -> str | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise invalid(f"{self.path(name)} must be a string", self.path(name))
        if longest is not None and len(value) > longest:
            at = self.path(name)
            raise invalid(f"{at} has {len(value)} characters, the limit is {longest}", at)
        return value

    def needed_text(self, name: str, *, longest: int | None = None) -> str:
        value = self.text(name, longest=longest)
        if value is None:
            raise invalid(f"{self.path(name)} is required", self.path(name))
        return value

    def array(self, name: str, longest: int) -> list[Any] | None:
        value = self.get(name)
        if value is None:
            return None
        at = self.path(name)
        if not isinstance(value, list):
            raise invalid(f"{at} must be an array", at)
        if len(value) > longest:
            raise invalid(f"{at} has {len(value)} entries, the limit is {longest}", at)
        return value

    def object(self, name: str) -> Fields | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid(f"{self.path(name)} must be an object", self.path(name))
        return self._inner(name, value, self.path(name))

    def element(self, name: str, index: int, value: Any) -> Fields:
        """The object `value` that stands at `index` of the array `name`."""
        at = f"{self.path(name)}[{index}]"
        if not isinstance(value, dict):
            raise invalid(f"{at} must be an object", at)
        return self._inner(name, value, at)

    def _inner(self, name: str, members: dict[str, Any], path: str) -> Fields:
        """What stands in the member `name`, or in an element of it."""
        return Fields(members, path)

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            at = self.path(name)
            raise invalid(f"{at} must be one of {', '.join(allowed)}, not {shorten(value)!r}", at)
        return value

    def refuse(self, name: str, neutral: tuple[Any, ...] = ()) -> None:
        """400 `unsupported_parameter`, unless the value is absent or changes nothing."""
        value = self.get(name)
        if value is not None and not any(
            type(value) is type(one) and value == one for one in neutral
        ):
            raise unsupported(f"{self.path(name)} is not supported", self.path(name))

    def only(self, known: tuple[str, ...]) -> None:
        """400 where a member is none of `known`."""
        for name in self.members:
            if name not in known:
                at = self.path(shorten(name))
                raise invalid(f"{at} is unknown; known are {', '.join(known)}", at)

    def not_null(self, name: str) -> None:
        """400 where `name` is given as null."""
        if name in self.members and self.members[name] is None:
            raise invalid(f"{self.path(name)} must not be null", self.path(name))


Body = bytes | Fields
"""A request's body, or its members where somebody watches what is read of them."""
