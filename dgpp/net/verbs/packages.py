"""Which Python package binds libibverbs here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dgpp.net.verbs import by_ibverbs, by_pyverbs
from dgpp.net.verbs.binding import Binding
from dgpp.net.verbs.errors import LibraryError
from dgpp.net.verbs.port import VerbsLibrary

PACKAGES: Mapping[str, Callable[[], Binding]] = {
    "pyverbs": by_pyverbs.load,
    "ibverbs": by_ibverbs.load,
}
"""By name, in the order in which they are tried: the system's own first."""


def load(names: Iterable[str] = tuple(PACKAGES)) -> VerbsLibrary:
    """Through the first package of `names` that loads. Raises LibraryError with what each lacks."""
    lacks = []
    for name in names:
        try:
            return VerbsLibrary(PACKAGES[name]())
        except LibraryError as error:
            lacks.append(str(error))
    raise LibraryError("; or: ".join(lacks))
