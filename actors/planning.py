"""The memory plan of a deployment for a machine that need not be this one: `dgpp plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from actors.bus import planned_lanes
from actors.launch import memory_settings, print_plan, uncomputed
from dgpp.checkpoint.facts import stand_in
from dgpp.checkpoint.json_file import named, read_json
from dgpp.checkpoint.model_files import find_model
from dgpp.config.settings import Settings
from dgpp.engine.backends import Choice, choose_backend, placed
from dgpp.engine.room import Room
from dgpp.errors import CheckpointError
from dgpp.models.dflash2.plan import with_drafter
from dgpp.models.plan import HEADROOM, MemoryPlan, plan_memory, require_fit
from dgpp.models.registry import family_of
from kernels_numba.gpu.device import OLDEST_DRIVER, Device

LATER = "not servable yet: planned all the same, but `dgpp run` refuses it as above"
"""The last line of a plan that this version cannot start."""


class Elsewhere(NamedTuple):
    """A machine that is not this one: `room`, of which `headroom` bytes have to stay free; None
    where nothing has to fit. `device` is the GPU that computes there, None for what the settings
    say."""

    room: Room | None = None
    headroom: int = HEADROOM
    device: Device | None = None

    def with_room(self, free_bytes: int) -> Elsewhere:
        """The same machine with so much memory free beside what the system needs."""
        unified = self.room is not None and self.room.unified
        return self._replace(room=Room(free_bytes, "there", unified), headroom=HEADROOM)


_GB10 = Device(
    0, "a GB10", (12, 1), 48, 121 << 30, 121 << 30, OLDEST_DRIVER, unified=True, shared=99 << 10
)
NODES = {
    "gb10": Elsewhere(Room(_GB10.free_bytes, "on a GB10", unified=True), 4 << 30, _GB10),
}
"""Nodes by name, with the memory that their system sees; the headroom is the system's own."""


def plan_elsewhere(settings: Settings, node: Elsewhere, deployments: Path) -> int:
    """Print a rank's plan from config.json alone, and check that it fits `node`; the process's exit
    status. A model that is not here is planned from the facts in `deployments`.

    A backend of `auto` is planned as what this machine would take, or `node`.
    """
    if settings.engine.backend == "scripted":
        print_plan(None)
        return 0
    path, config, _ = _config(settings.model, deployments)
    with named(path):
        choice = _choice(settings, node, config)
    plan = elsewhere(
        settings,
        choice.backend,
        deployments,
        unified=bool(node.room and node.room.unified),
        device=choice.device,
    )
    if choice.why:
        plan = structs.replace(plan, notes=(*plan.notes, choice.said))
    print_plan(plan)
    if node.room is not None:
        place = placed(settings.engine.backend, choice.backend, node.room.name)
        require_fit(plan, node.room.free_bytes, place, node.headroom)
    return 0


def _choice(settings: Settings, node: Elsewhere, config: dict[str, Any]) -> Choice:
    wanted, device = settings.engine.backend, node.device

    def lacks(device: Device) -> tuple[str, ...]:
        return family_of(config).lacks(config, settings.world_size, device)

    if device is None:
        # What is told needs no GPU to be planned for.
        auto = wanted == "auto"
        return choose_backend(wanted, settings.device(0), lacks) if auto else Choice(wanted)
    if wanted == "auto" and (missed := lacks(device)):
        return Choice("cpu", why=missed[0])
    return Choice("cuda", device)


def elsewhere(
    settings: Settings,
    backend: str,
    deployments: Path,
    *,
    unified: bool = False,
    device: Device | None = None,
) -> MemoryPlan:
    """The plan of a rank on `backend`, its drafts included, from config.json alone. It notes what
    `backend`, and where that is known its `device`, does not compute."""
    engine, world = settings.engine, settings.world_size
    lanes = planned_lanes(settings, backend)
    sizes = memory_settings(settings, backend, unified=unified, lanes=lanes)
    sizes = structs.replace(sizes, drafts=engine.mtp)
    path, config, said = _config(settings.model, deployments)
    with named(path):
        plan = plan_memory(config, sizes, world)
        missing = uncomputed(settings, config, backend, device)
    if engine.dflash_model:
        path, drafter, more = _config(engine.dflash_model, deployments)
        with named(path):
            plan, said = with_drafter(plan, config, drafter, sizes, world), said + more
    later = (LATER,) if missing else ()
    return structs.replace(plan, notes=(*plan.notes, *said, *missing, *later))


def _config(model: str, deployments: Path) -> tuple[Path, dict[str, Any], tuple[str, ...]]:
    """The model's config.json, what it holds, and what is to be said of where it came from."""
    try:
        path = find_model(model, weights=False).config
        return path, read_json(path), ()
    except CheckpointError:
        facts = stand_in(model, deployments)
        if facts is None:
            raise
        said = f"{model} is not on this machine: planned from {facts}"
        return facts, read_json(facts), (said,)
