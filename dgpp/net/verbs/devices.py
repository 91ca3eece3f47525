"""GPUs that sum over the RoCE bus: kernels put words into the slab that the poller carries."""

from __future__ import annotations

from typing import Any

from dgpp.net.collective import Wire
from dgpp.net.device import DeviceCollective, DeviceRanks
from dgpp.net.tags import Kind, tag
from dgpp.net.verbs.collective import VerbsCollective
from dgpp.net.verbs.slots import device_records
from kernels_numba.backend import Backend
from kernels_numba.gpu.bus import BusChannels, BusRanks, register_slab


def open_devices(bus: VerbsCollective) -> DeviceCollective:
    """Sums by kernels over channels of their own, everything else by `bus`, which has joined and
    whose layout has a pool for devices."""
    return DeviceCollective("verbs", bus, Opener())


class Opener:
    """Opens this rank's end for rows of any width; the channels, and what is counted of them, stay
    the same."""

    def __init__(self) -> None:
        self._channels: BusChannels | None = None

    def __call__(self, bus: VerbsCollective, backend: Backend, width: int) -> DeviceRanks:
        device: Any = backend
        ranks: DeviceRanks = device.open_ranks(
            lambda kernels, _gpu, rows: BusRanks(self._channels_of(bus, kernels), rows, width)
        )
        return ranks

    def _channels_of(self, bus: VerbsCollective, kernels: Any) -> BusChannels:
        if self._channels is None:
            slab = bus.slab
            register_slab(slab.address, slab.layout.bytes)
            self._channels = BusChannels(kernels, bus.rank, device_records(slab), _tag)
        return self._channels


def _tag(gather: bool, size: int) -> int:
    return tag(Kind.ALL_GATHER if gather else Kind.ALL_REDUCE, Wire.F32, size)
