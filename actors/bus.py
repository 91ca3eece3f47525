"""A rank's end of the RoCE bus, before it exists: its lanes and the memory that two roles share."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from actors.boot import Boot, Lane
from dgpp.config.ports import sums_over_roce
from dgpp.config.settings import Settings
from dgpp.config.site import is_gid_index
from dgpp.errors import ConfigError
from dgpp.net.roce import INFINIBAND, MOST_LANES, chosen
from dgpp.net.verbs.frames import geometry_of
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.slab import BusFiles, create_bus

SLAB, BELL = "bus", "bus bell"
"""What the files of a rank's bus are called by its engine and its poller."""


def bus_lanes(settings: Settings, rank: int, root: Path = INFINIBAND) -> tuple[Lane, ...]:
    """The devices that the environment of this rank names, else those that serve.

    Raises ConfigError where one that is named is not here, or none serves.
    """
    names = _listed("DGPP_ROCE_DEVICES")
    pinned = _listed("DGPP_ROCE_GID_INDICES")
    for index in pinned:
        if not is_gid_index(index):
            raise ConfigError(f"DGPP_ROCE_GID_INDICES: expected integers in 0..255, got {index}")
    gids = [int(index) for index in pinned]
    try:
        devices = chosen(names, gids, root)
        gids += [-1] * (len(devices) - len(gids))
        return tuple(
            Lane(device.name, device.gid(gid).index)
            for device, gid in zip(devices, gids, strict=False)
        )
    except ConfigError as error:
        raise ConfigError(
            f"engine.collective: {settings.engine.collective} is the RoCE bus here, and rank "
            f"{rank} has none: {error}"
        ) from error


def _listed(name: str, told: Mapping[str, str] = os.environ) -> list[str]:
    return re.split(r"[\s,]+", value) if (value := told.get(name, "").strip()) else []


def planned_lanes(settings: Settings, backend: str) -> int:
    """How many lanes a rank will have on a machine that is not this one; 0: no bus."""
    if backend == "scripted" or not sums_over_roce(settings):
        return 0
    told = settings.node_env[0] if settings.node_env else {}
    return len(_listed("DGPP_ROCE_DEVICES", told)) or MOST_LANES


def bus_layout(boot: Boot) -> Layout:
    """Where everything lies in the slabs of the world's ranks."""
    assert boot.bus is not None
    return Layout(geometry_of(boot.backend), len(boot.bus.lanes), boot.settings.world_size)


def share_bus(boot: Boot) -> tuple[dict[str, int], dict[str, int]]:
    """New memory for this rank's end, as files for its engine and for its poller, each its own to
    close."""
    first = create_bus(bus_layout(boot))
    files = {SLAB: first.slab, BELL: first.bell}
    return files, {name: os.dup(fd) for name, fd in files.items()}


def bus_files(files: Mapping[str, int]) -> BusFiles:
    """Those of `share_bus` that an actor was handed."""
    return BusFiles(files[SLAB], files[BELL])
