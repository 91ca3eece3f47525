"""RDMA devices of this machine as the kernel describes them, and which of their addresses serve.

Everything is read below /sys/class/infiniband; no verbs library is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from ipaddress import IPv6Address
from pathlib import Path

import msgspec

from dgpp.errors import ConfigError

INFINIBAND = Path("/sys/class/infiniband")
PORT = 1
"""The bus uses the first port of every device."""
ROCE_V2 = "RoCE v2"
MOST_LANES = 2
_MOST_TEXT = 4096


class Gid(msgspec.Struct, frozen=True):
    """Entry `index` of a port's address table; `kind` as the kernel spells it, `network` its
    network device."""

    index: int
    address: str
    kind: str
    network: str

    @property
    def serves(self) -> bool:
        """Whether peers in other networks than the link's can be reached from it.

        Link-local addresses stand first in the table, and between some machines nothing that is
        sent from them arrives.
        """
        address = IPv6Address(self.address)
        return self.kind == ROCE_V2 and not address.is_link_local and not address.is_unspecified

    @property
    def host(self) -> str:
        """The IP address that it stands for."""
        address = IPv6Address(self.address)
        return str(address.ipv4_mapped or address)


class RoceDevice(msgspec.Struct, frozen=True):
    """A device's first port; `state` as in 4: ACTIVE, `rate` as in 200 Gb/sec (4X HDR)."""

    name: str
    state: str
    rate: str
    layer: str
    gids: tuple[Gid, ...]

    @property
    def active(self) -> bool:
        return self.state.endswith("ACTIVE")

    @property
    def gbps(self) -> float:
        """Gb/s of the port, 0 where the kernel does not say."""
        told = self.rate.split(" ", 1)[0]
        return float(told) if told.replace(".", "", 1).isdecimal() else 0.0

    def gid(self, pinned: int = -1) -> Gid:
        """The entry `pinned`, else the first that serves. Raises ConfigError."""
        if pinned >= 0:
            for gid in self.gids:
                if gid.index == pinned:
                    return gid
            have = ", ".join(str(gid.index) for gid in self.gids) or "none"
            raise ConfigError(
                f"DGPP_ROCE_GID_INDICES: {self.name} has no GID {pinned}; it has {have}"
            )
        for gid in self.gids:
            if gid.serves:
                return gid
        raise ConfigError(
            f"{self.name}: no RoCE v2 address but link-local ones; give its network device an IP "
            "address, or pin an entry with DGPP_ROCE_GID_INDICES"
        )


def devices(root: Path = INFINIBAND) -> list[RoceDevice]:
    """All RDMA devices in the order of their names; none where there is no such driver."""
    return [_device(root / name) for name in _names(root)]


def _names(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []


def chosen(
    names: Sequence[str], pinned: Sequence[int], root: Path = INFINIBAND
) -> list[RoceDevice]:
    """The devices `names`, else all that are active and have an address that serves, at most
    `MOST_LANES`, in lane order. Raises ConfigError naming what is missing."""
    here = _names(root)
    if not here:
        raise ConfigError("no RDMA device here: load its driver (see docs/networking.md)")
    if not names:
        found = devices(root)
        lanes = usable(found)
        if not lanes:
            states = ", ".join(f"{d.name} is {d.state}" for d in found)
            raise ConfigError(f"no RDMA device is active with a RoCE v2 address: {states}")
        return lanes
    lanes = []
    for place, name in enumerate(names):
        if name not in here:
            raise ConfigError(f"DGPP_ROCE_DEVICES: no {name} here; there are {', '.join(here)}")
        lane = _device(root / name)
        if not lane.active:
            raise ConfigError(f"DGPP_ROCE_DEVICES: {name} is {lane.state}: check its cable")
        lane.gid(pinned[place] if place < len(pinned) else -1)
        lanes.append(lane)
    return lanes


def usable(found: Iterable[RoceDevice]) -> list[RoceDevice]:
    """Those that are active and have an address that serves, at most `MOST_LANES`."""
    return [d for d in found if d.active and any(gid.serves for gid in d.gids)][:MOST_LANES]


def site_values(lanes: Iterable[RoceDevice]) -> dict[str, str]:
    """The site keys that name exactly these lanes."""
    lanes = list(lanes)
    return {
        "DGPP_ROCE_DEVICES": " ".join(lane.name for lane in lanes),
        "DGPP_ROCE_GID_INDICES": " ".join(str(lane.gid().index) for lane in lanes),
    }


def site_lines(lanes: Iterable[RoceDevice]) -> list[str]:
    """What a `.env` file says to use exactly these lanes."""
    return [f'{name}="{value}"' for name, value in site_values(lanes).items()]


def _device(folder: Path) -> RoceDevice:
    port = folder / "ports" / str(PORT)
    return RoceDevice(
        folder.name,
        _text(port / "state"),
        _text(port / "rate"),
        _text(port / "link_layer"),
        tuple(_gids(port)),
    )


def _gids(port: Path) -> Iterable[Gid]:
    table = port / "gids"
    if not table.is_dir():
        return
    for index, address in _addresses(table):
        # An entry that is not in use has an address of zeros and no type.
        if address.strip("0:"):
            attributes = port / "gid_attrs"
            kind = _text(attributes / "types" / str(index))
            yield Gid(index, address, kind, _text(attributes / "ndevs" / str(index)))


def _addresses(table: Path) -> list[tuple[int, str]]:
    """Entries in order. There may be a thousand, nearly all of them not in use."""
    folder = os.open(table, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = []
        for index in sorted(int(entry.name) for entry in table.iterdir()):
            entry = os.open(str(index), os.O_RDONLY, dir_fd=folder)
            try:
                found.append((index, os.read(entry, _MOST_TEXT).decode().strip()))
            except OSError:
                continue
            finally:
                os.close(entry)
        return found
    finally:
        os.close(folder)


def _text(file: Path) -> str:
    try:
        with file.open("rb", buffering=0) as opened:
            return opened.read(_MOST_TEXT).decode().strip()
    except OSError:
        return ""
