"""The engine's actor: it runs plans and hands their candidates to the sampler."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actors.boot import Boot
from actors.bus import bus_files, bus_layout
from actors.channel import Arrays
from actors.cold_disk import ColdDisk, ColdMover
from actors.cold_open import open_cold
from actors.context import Context, T
from actors.memory_lock import lock_memory
from actors.messages.engine_sampler import FullRow, Scored, Selected
from actors.messages.engine_scheduler import ColdEnded
from actors.messages.sampler_engine import Masks, WantRow
from actors.metrics import COLD_FIGURES, COLLECTIVE_FIGURES
from actors.role import Role
from actors.world import SLAB
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.json_file import read_json
from dgpp.checkpoint.resolve import resolve_model
from dgpp.config.settings import PathSettings
from dgpp.engine.base import Engine, StepTrace
from dgpp.errors import ConfigError, EngineStalledError
from dgpp.net.collective import Collective
from dgpp.sample.candidates import Candidates
from dgpp.sample.scored import ScoredPrompt
from dgpp.sample.tables import TableWriter, allocate_tables
from dgpp.sched.plan import Plan
from dgpp.state.pools import StatePools

SAMPLER = "engine>sampler"
SCHEDULER = "engine>scheduler"
WARNING = "warning: "
STALL_S = 120.0
"""The longest that one step may take: no step of any model comes near it."""

_log = logging.getLogger("dgpp.engine")

Found = tuple[Candidates, tuple[ScoredPrompt, ...]]


class EngineActor(Role):
    """Plans in, candidates out in the same order, and whole rows where the sampler asks for them.

    A step with rows that follow a grammar begins when their masks have come too; the scheduler
    sends no other plan before its verdict.

    At depth 0 a step is launched and collected in one go. Above it, a plan is launched when it
    comes, and a task of its own collects: what it waits for, it waits for in another thread.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        limits = self.boot.limits
        self._tables = TableWriter(
            allocate_tables(limits.slots, limits.vocab_size, 1 + limits.max_drafts)
        )
        self._engine: Engine | None = None
        self._collective: Collective | None = None
        self._cold: ColdDisk | None = None
        self._plan: Plan | None = None
        self._masks: tuple[int, tuple[int, ...], npt.NDArray[np.uint32]] | None = None
        self._masked: set[int] = set()
        self._depth = limits.depth
        self._launched: asyncio.Queue[int] = asyncio.Queue()
        self._pace_s = self.boot.settings.engine.step_ms / 1e3
        self._due = 0.0

    async def start(self) -> None:
        if self.boot.backend != "scripted":
            _log.info("%s", lock_memory())
        with self.context.loading(f"the {self.boot.backend} engine"):
            self._engine = await self.context.run_blocking(self._build)
        self._note_collectives()
        if self._depth:
            self.context.spawn(self._collect())

    async def serve(self) -> None:
        if self._cold is not None:
            self._cold.start()

    def _build(self) -> Engine:
        files = open_cold(self.boot)
        engine = self._build_engine()
        if files is not None:
            mover = ColdMover(files, state_pools(engine))
            self._cold = ColdDisk(mover, self._cold_ended, self._cold_broke)
        return engine

    def _build_engine(self) -> Engine:
        if self.boot.settings.world_size > 1 and self.boot.backend != "scripted":
            self._collective = open_ranks(self.boot, self.context.files)
        return build_engine(self.boot, self._collective)

    async def stop(self) -> None:
        if self._cold is not None:
            self._cold.close()
        if self._collective is not None:
            self._collective.close()

    async def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        match message:
            case Plan():
                self._plan = message
                await self._run_when_masked()
            case Masks(step, slots):
                self._masks = (step, slots, arrays[0].copy())
                await self._run_when_masked()
            case WantRow(step, row):
                wait = self._wait if self._depth else self.context.run_blocking
                rows = await wait(self._loaded.full_rows, step, [row])
                self.context.post(SAMPLER, FullRow(step, row), [rows[0]])

    @property
    def _loaded(self) -> Engine:
        assert self._engine is not None
        return self._engine

    async def _run_when_masked(self) -> None:
        """Run the plan that came, unless masks that its rows need have not come yet."""
        plan = self._plan
        if plan is None:
            return
        self._masked.difference_update(plan.closes)
        for opened in plan.opens:
            (self._masked.add if opened.request.grammar else self._masked.discard)(opened.slot)
        needed = [slot for slot in plan.sampled_slots() if slot in self._masked]
        if needed and (self._masks is None or self._masks[0] != plan.step):
            return
        self._plan = None
        await self._run(plan)

    async def _run(self, plan: Plan) -> None:
        if self._depth:
            await self.context.run_blocking(self._launch, plan)
            self._launched.put_nowait(plan.step)
        else:
            await self._send(plan.step, *await self.context.run_blocking(self._step, plan))

    def _launch(self, plan: Plan) -> None:
        self._tables.advance(plan)
        if self._masks is not None and self._masks[0] == plan.step:
            self._tables.mask(*self._masks[1:])
        self._loaded.launch(plan, self._tables.tables)
        if self._cold is not None:
            # What they copy from is enqueued; no later plan changes it before they have ended.
            for spill in plan.spills:
                self._cold.put(spill)
            for restore in plan.restores:
                self._cold.put(restore)

    def _cold_ended(self, ended: ColdEnded) -> None:
        """From the disk tier's thread."""
        self.context.loop.call_soon_threadsafe(self._tell_cold, ended)

    def _cold_broke(self, error: Exception) -> None:
        """From the disk tier's thread."""
        self.context.loop.call_soon_threadsafe(self.context.report_failure, error)

    def _tell_cold(self, ended: ColdEnded) -> None:
        assert self._cold is not None
        block, figures = self.context.statistics, self._cold.figures
        for name in COLD_FIGURES:
            block.gauge(f"cold_{name}").set(getattr(figures, name))
        block.gauge("cold_waiting").set(self._cold.pending)
        if ended.kind != "inventory":
            block.histogram(f"cold_{ended.kind}_seconds").observe(ended.took_s)
        self.context.post(SCHEDULER, ended)

    def _step(self, plan: Plan) -> Found:
        self._launch(plan)
        return self._collected(plan.step)

    def _collected(self, step: int) -> Found:
        candidates = self._loaded.collect(step)
        self._note(self._loaded.trace)
        return candidates, self._loaded.scored

    async def _collect(self) -> None:
        while True:
            step = await self._launched.get()
            await self._send(step, *await self._wait(self._collected, step))

    async def _wait(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call in another thread; EngineStalledError where the engine gives no sign of life."""
        calling = self.context.loop.run_in_executor(None, function, *arguments)
        try:
            return await asyncio.wait_for(calling, STALL_S)
        except TimeoutError:
            raise EngineStalledError(f"engine: a step did not end within {STALL_S:.0f} s") from None

    async def _send(
        self, step: int, candidates: Candidates, scored: tuple[ScoredPrompt, ...]
    ) -> None:
        if self._pace_s:
            await self._keep_pace()
        if scored:
            self.context.post(SAMPLER, Scored(step, scored))
        self.context.post(SAMPLER, Selected(step), candidates.arrays())

    def _note(self, trace: StepTrace) -> None:
        block = self.context.statistics
        if trace.replayed:
            block.gauge("last_rows").set(trace.replayed)
            block.counter(f"replays_{trace.replayed}").add()
        self._note_collectives()
        if trace.gap_ns >= 0:
            block.histogram("replay_gap_seconds").observe(trace.gap_ns / 1e9)

    def _note_collectives(self) -> None:
        if self._collective is None:
            return
        block, done = self.context.statistics, self._collective.statistics()
        block.gauge(f"collectives_{done.path}").set(done.total)
        for name in COLLECTIVE_FIGURES:
            block.gauge(f"collective_{name}").set(getattr(done, name))

    async def _keep_pace(self) -> None:
        """Let no step end sooner than `step_ms` after the one before."""
        now = self.context.clock()
        self._due = max(self._due + self._pace_s, now)
        await asyncio.sleep(self._due - now)


def state_pools(engine: Engine) -> StatePools:
    """The memory that the disk tier moves to and from."""
    from dgpp.engine.model_engine import ModelEngine

    assert isinstance(engine, ModelEngine)
    return engine.pools


def open_ranks(boot: Boot, files: Mapping[str, int]) -> Collective:
    """This rank's end of the collectives, over those of `files` that are theirs and are closed."""
    from dgpp.net.choose import open_bus, open_collective

    engine, world = boot.settings.engine, boot.settings.world_size
    timeout_s = engine.rendezvous_timeout_ms / 1e3
    if boot.bus is not None:
        shared = bus_files(files)
        try:
            return open_bus(
                engine.collective, boot.backend, shared, boot.rank, bus_layout(boot), timeout_s
            )
        finally:
            shared.close()
    slab = files[SLAB]
    try:
        return open_collective(
            engine.collective, boot.backend, boot.device, slab, boot.rank, world, timeout_s
        )
    finally:
        os.close(slab)


def image_directory(paths: PathSettings) -> Path | None:
    """Where weight images are kept, as the node says or else the deployment; None: nowhere."""
    told = os.environ.get("DGPP_RESIDENT_CACHE_DIR") or paths.resident_cache
    return Path(told).expanduser() if told else None


def _table_checkpoint(name: str) -> Checkpoint | None:
    """The checkpoint whose tables of n-grams are used, "" for the model's own. Raises
    CheckpointError where it is not on this machine."""
    return Checkpoint(resolve_model(name)) if name else None


def build_engine(boot: Boot, collective: Collective | None = None) -> Engine:
    """The engine that `boot.backend` names, loaded, one rank of a world where there is a
    `collective`. Raises named errors of dgpp.errors."""
    # Imported here: each backend costs its libraries' load time, and only one is used.
    if boot.backend == "scripted":
        from dgpp.engine.script import load_script
        from dgpp.engine.scripted import ScriptedEngine

        script = boot.settings.engine.script
        lines = load_script(Path(script), boot.limits.vocab_size) if script else []
        return ScriptedEngine(boot.limits, lines)
    if boot.backend in ("cpu", "cuda"):
        from dgpp.engine.loading import DummyModel
        from dgpp.engine.model_engine import ModelEngine
        from dgpp.models.forms import model_forms
        from dgpp.models.tables import Tables

        dummy = boot.settings.engine.load == "dummy"
        engine = ModelEngine(
            DummyModel(read_json(Path(boot.config_path))) if dummy else Path(boot.model_directory),
            boot.limits,
            boot.threads,
            backend=boot.backend,
            device=boot.device,
            collective=collective,
            embed_sharding=boot.settings.engine.embed_sharding,
            forms=model_forms(boot.settings.engine),
            images=image_directory(boot.settings.paths),
            tables=Tables(
                boot.settings.engine.ngram_table == "mmap",
                None if dummy else _table_checkpoint(boot.settings.engine.ngram_table_model),
            ),
        )
        engine.warm_up()
        if boot.settings.engine.decode_graph:
            engine.record()
        if collective is not None:
            collective.barrier()
            collective.serve()
        for note in engine.notes():
            level = logging.WARNING if note.startswith(WARNING) else logging.INFO
            _log.log(level, "%s", note.removeprefix(WARNING))
        return engine
    raise ConfigError(f"engine.backend: {boot.backend} is not supported yet")
