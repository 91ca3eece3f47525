"""One end of a connection over a real device."""

from __future__ import annotations

from verbs_end import End

from dgpp.net.roce import chosen
from dgpp.net.verbs.packages import PACKAGES, load


def open_end(device: str, gid_index: int, package: str = "", **options: int) -> End:
    """Over a port of its own, which `close_end` closes too; through `package`, or any."""
    library = load([package] if package else PACKAGES)
    return End(library.open(chosen([device], [gid_index])[0], gid_index), **options)


def close_end(end: End) -> None:
    end.close()
    end.port.close()
