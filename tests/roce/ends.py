"""One end of a connection over a real device."""

from __future__ import annotations

from verbs_end import End

from dgpp.net.roce import chosen
from dgpp.net.verbs.by_pyverbs import load


def open_end(device: str, gid_index: int, **options: int) -> End:
    """Over a port of its own, which `close_end` closes too."""
    return End(load().open(chosen([device], [gid_index])[0], gid_index), **options)


def close_end(end: End) -> None:
    end.close()
    end.port.close()
