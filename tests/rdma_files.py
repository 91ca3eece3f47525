"""RDMA devices as the kernel describes them in files, for tests."""

from __future__ import annotations

from pathlib import Path

LINK_LOCAL = "fe80:0000:0000:0000:4ab0:2dff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a09:0001"
IPV6 = "fd00:0000:0000:0000:0000:0000:0000:0005"
NONE = "0000:0000:0000:0000:0000:0000:0000:0000"
V1, V2 = "IB/RoCE v1", "RoCE v2"
TABLE = [(LINK_LOCAL, V1), (LINK_LOCAL, V2), (IPV4, V1), (IPV4, V2), (NONE, ""), (IPV6, V2)]
"""A port's addresses and their types; entry 3 is the first that serves."""
UP, DOWN = "4: ACTIVE", "1: DOWN"


def make_devices(folder: Path, **found: tuple[str, list[tuple[str, str]]]) -> Path:
    """Devices with state and (address, type) of each entry; `folder` is what sysfs would be."""
    for name, (state, gids) in found.items():
        port = folder / name / "ports" / "1"
        for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
            (port / part).mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        (port / "link_layer").write_text("Ethernet\n")
        for index, (address, kind) in enumerate(gids):
            (port / "gids" / str(index)).write_text(address + "\n")
            if address != NONE:
                (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")
                (port / "gid_attrs/ndevs" / str(index)).write_text("enp1s0\n")
    return folder
