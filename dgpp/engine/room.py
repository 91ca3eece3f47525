"""How much memory an engine may take, and whose it is."""

from __future__ import annotations

from typing import NamedTuple

from dgpp.checkpoint.host_memory import available_memory
from kernels_numba.gpu.device import Device


class Room(NamedTuple):
    """`name` says where, to follow "MiB that are free". `unified`: device and host share it."""

    free_bytes: int
    name: str
    unified: bool = False


def room_for(device: Device | None) -> Room:
    """Memory of the device, of the host where there is none, or of both where they share it.

    An integrated GPU counts as free only what nothing occupies; the host knows what else it could
    reclaim, such as the pages of files that were read.
    """
    if device is None:
        return Room(available_memory(), "on this host")
    place = f"on device {device.index} ({device.name})"
    if device.unified:
        return Room(available_memory(), f"{place}, which shares the host's memory", unified=True)
    return Room(device.free_bytes, place)
