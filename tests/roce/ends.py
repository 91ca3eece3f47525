"""One end of a connection over a real device."""

from __future__ import annotations

import pytest
from verbs_end import End

from dgpp.net.roce import chosen
from dgpp.net.verbs.packages import PACKAGES, load

FIRST, *OTHERS = PACKAGES
either = pytest.mark.parametrize(
    "package",
    [FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)],
    indirect=True,
)
"""With the package that is tried first; what an emulated processor takes long for with the others
is left out unless asked for."""


def open_end(device: str, gid_index: int, package: str, **options: int) -> End:
    """Over a port of its own, which `close_end` closes too."""
    library = load([package])
    return End(library.open(chosen([device], [gid_index])[0], gid_index), **options)


def close_end(end: End) -> None:
    end.close()
    end.port.close()
