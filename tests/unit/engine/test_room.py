"""Whose memory an engine takes, and what the plan says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dgpp.engine import room as rooms
from dgpp.engine.room import room_for
from dgpp.errors import MemoryPlanError
from dgpp.models.plan import CUDA_RUNTIME, RUNTIME, MemorySettings, plan_memory, require_fit
from dgpp.net.slab import slab_bytes
from kernels_numba.gpu.device import Device

CONFIG = json.loads((Path(__file__).parents[2] / "fixtures/glm-4.7-bf16/config.json").read_text())
HOST = 100 << 30
H200 = Device(3, "NVIDIA H200", (9, 0), 132, 9 << 30, 10 << 30, 13000, unified=False)
GB10 = Device(0, "NVIDIA GB10", (12, 1), 48, 2 << 30, 128 << 30, 13000, unified=True)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "available_memory", lambda: HOST)


def test_each_machine_has_its_room() -> None:
    assert room_for(None) == (HOST, "on this host", False)
    assert room_for(H200) == (9 << 30, "on device 3 (NVIDIA H200)", False)
    free, name, unified = room_for(GB10)
    assert (free, unified) == (HOST, True)
    assert name == "on device 0 (NVIDIA GB10), which shares the host's memory"


def test_where_memory_is_shared_the_host_side_counts_too() -> None:
    def runtime(**settings: object) -> int:
        plan = plan_memory(CONFIG, MemorySettings(**settings))  # type: ignore[arg-type]
        return next(item.bytes for item in plan.items if item.name == "runtime")

    assert runtime() == RUNTIME
    assert runtime(backend="cuda") == CUDA_RUNTIME
    assert runtime(backend="cuda", unified=True) == CUDA_RUNTIME + RUNTIME


def test_what_ranks_exchange_rows_through_is_counted_where_it_lies() -> None:
    def collective(world: int = 2, **settings: object) -> int:
        plan = plan_memory(CONFIG, MemorySettings(**settings), world)  # type: ignore[arg-type]
        return sum(item.bytes for item in plan.items if item.name == "collective")

    hidden, world = int(CONFIG["hidden_size"]), 2
    host = slab_bytes(world) // world
    # 1,024 rows of every rank, or two sides of 64 rows of lines twice as large, and a few flags.
    gathered = 4 * world * 1024 * -(-hidden // 128) * 128
    assert gathered > 2 * world * 64 * hidden * 8
    assert collective(1, backend="cuda") == 0
    assert collective() == host
    assert collective(backend="cuda") == gathered
    assert collective(backend="cuda", unified=True) == gathered + host


def test_a_plan_that_does_not_fit_says_where() -> None:
    plan = plan_memory(CONFIG, MemorySettings(backend="cuda", kv_capacity=1 << 30))
    with pytest.raises(MemoryPlanError, match=r"that are free on device 3 \(NVIDIA H200\); larg"):
        require_fit(plan, *room_for(H200)[:2])
