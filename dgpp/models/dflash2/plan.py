"""What a block drafter adds to its target's memory plan."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from dgpp.models.dflash2.config import parse, require_target
from dgpp.models.dflash2.model import DFlash2
from dgpp.models.plan import (
    WEIGHTS,
    MemoryItem,
    MemoryPlan,
    MemorySettings,
    row_capacity,
)
from dgpp.models.registry import family_of
from dgpp.models.shard import Shard
from dgpp.models.sources import PlannedWeights
from dgpp.state.declaration import CPU_CACHE, CUDA_CACHE


def drafter_bytes(drafter: dict[str, Any], world: int) -> int:
    """Bytes of the weights that a rank holds of the drafter of config.json `drafter`. Raises
    ConfigError where `world` does not divide its sizes."""
    source = PlannedWeights(Shard(0, world))
    DFlash2(parse(drafter), source)
    return sum(source.items.values())


def with_drafter(
    plan: MemoryPlan,
    target: dict[str, Any],
    drafter: dict[str, Any],
    settings: MemorySettings,
    world: int = 1,
) -> MemoryPlan:
    """`plan` of the model whose config.json is `target`, with the drafter of config.json `drafter`
    beside it: its weights, its rows of every slot, its activations. Raises CheckpointError where
    the drafter is not the target's, ConfigError where `world` does not divide its sizes."""
    parsed = parse(drafter)
    require_target(parsed, family_of(target).settle(target))
    source = PlannedWeights(Shard(0, world))
    model = DFlash2(parsed, source)
    cuda = settings.backend == "cuda"
    context = model.state.snapshot_bytes(CUDA_CACHE if cuda else CPU_CACHE)
    sizes = {
        **{f"{WEIGHTS}drafter {name}": size for name, size in source.items.items()},
        "drafter context": context * settings.slots,
        "drafter activations": model.workspace.row_bytes(narrow=cuda) * row_capacity(plan.limits),
    }
    items = [*plan.items, *(MemoryItem(name, size) for name, size in sizes.items())]
    items.sort(key=lambda item: (-item.bytes, item.name))
    return structs.replace(plan, items=tuple(items))
