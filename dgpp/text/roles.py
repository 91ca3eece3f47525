"""Where the turns of a conversation begin: at the control tokens that name a role."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from dgpp.sched.request import Ids, pack_ids
from dgpp.text.dialect import Render
from dgpp.text.errors import TemplateError
from dgpp.text.guard import ControlGuard

_TURNS = (("system", "Quokka"), ("user", "Zebra"), ("assistant", "Wombat"), ("user", "Yak"))


def role_markers(render: Render, guard: ControlGuard) -> frozenset[int]:
    """The control tokens that the template behind `render` puts before a role's text: the last one
    ahead of each, as far as the template knows the role. `guard` is of all
    control tokens but the markers."""
    found: set[int] = set()
    for turns in (_TURNS, _TURNS[1:]):
        try:
            rendered = render([{"role": role, "content": text} for role, text in turns])
        except TemplateError:
            continue
        for _, text in turns:
            ahead = guard.split(rendered.partition(text)[0], None)
            tokens = [piece for piece in ahead if isinstance(piece, int)]
            found.update(tokens[-1:])
        break
    return frozenset(found)


def role_boundaries(ids: Ids, markers: Collection[int], align: int) -> bytes:
    """The packed positions of `markers` in a prompt, its first token excepted; of those between two
    multiples of `align` one, since a cut can only stand at such."""
    if not markers:
        return b""
    places = np.flatnonzero(np.isin(ids, list(markers)))
    places = places[places > 0]
    _, first = np.unique(places // align, return_index=True)
    return pack_ids(places[first])
