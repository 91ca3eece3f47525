"""From resolved settings to a deployment: what a rank is, settled before anything is loaded."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from actors.boot import Boot, BusBoot
from actors.bus import bus_lanes
from dgpp import log
from dgpp.checkpoint.demo import DEMO_MODEL, ensure_demo
from dgpp.checkpoint.json_file import named, read_json, read_object
from dgpp.checkpoint.model_files import ModelFiles, find_model
from dgpp.config.engine_settings import EngineSettings
from dgpp.config.ports import is_local
from dgpp.config.settings import SamplingSettings, Settings
from dgpp.config.version import version
from dgpp.engine.backends import Choice, choose_backend, placed, unused
from dgpp.engine.depth import pipeline_depth
from dgpp.engine.room import Room, room_for
from dgpp.engine.script import load_script, max_drafts
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.forms import model_forms
from dgpp.models.plan import (
    MIB,
    MemoryPlan,
    MemorySettings,
    plan_memory,
    prefix_snapshots,
    require_fit,
)
from dgpp.models.registry import family_of
from dgpp.net.paths import Route, path_of
from dgpp.sample.params import SamplingParams
from dgpp.sched.limits import EngineLimits
from dgpp.serve.served import ServedModel, sampling_defaults, with_top_p
from dgpp.text.codec import TextCodec
from dgpp.text.efforts import efforts_of
from dgpp.text.prompt_template import load_template
from kernels_numba.gpu.device import Device

_log = logging.getLogger("dgpp.launch")

SCRIPTED_BLOCK_TOKENS = 64
SCRIPTED_CHUNK_TOKENS = 1024
SCRIPTED_BLOCKS = 2**22
"""Most blocks of the scripted engine's pool: no memory plan bounds the lists kept of them."""


class Deployment(NamedTuple):
    """What was decided before anything is loaded."""

    boot: Boot
    plan: MemoryPlan | None = None
    room: Room | None = None


def memory_plan(settings: Settings) -> int:
    """Print the plan and check that it fits; the process's exit status."""
    print_plan(deploy(settings, log_json=False).plan)
    return 0


def print_plan(plan: MemoryPlan | None) -> None:
    """A plan as a table, what it says in words under it; None is the scripted engine's."""
    if plan is None:
        sys.stdout.write("the scripted engine holds no weights and no cache\n")
        return
    for item in plan.items:
        sys.stdout.write(f"{item.bytes / MIB:12.1f} MiB  {item.name}\n")
    sys.stdout.write(f"{plan.total / MIB:12.1f} MiB  in all, per rank\n")
    sys.stdout.write(f"{plan.token_bytes / 1024:12.1f} KiB  per token of engine.kv_capacity\n")
    for note in plan.notes:
        sys.stdout.write(f"{note}\n")


def deploy(settings: Settings, *, log_json: bool, rank: int = 0, apart: bool = False) -> Deployment:
    """Find the model, plan its memory and settle everything that the roles are told. `apart`: no
    other rank is started by this process."""
    files = model_files(settings)
    engine = settings.engine
    wanted = settings.device(rank)
    if engine.backend == "cuda":
        # A device is asked for only where one could compute this.
        _require_computed(settings, files, "cuda")
    choice = choose_backend(engine.backend, wanted, partial(_lacks, settings, files))
    backend, device = choice.backend, choice.device
    if choice.why:
        _log.warning("%s", choice.said)
    if said := unused(backend, "engine.devices", engine.devices):
        _log.warning("%s", said)
    bus = None
    if settings.world_size > 1:
        bus = _bus(settings, backend, rank, apart=apart)
    plan, room = None, None
    if backend == "scripted":
        limits = _scripted_limits(settings, files.directory)
    else:
        room = room_for(device)
        plan = _plan(settings, files, choice, room, 0 if bus is None else len(bus.lanes))
        place = placed(engine.backend, backend, room.name)
        require_fit(plan, room.free_bytes // sharers(settings, backend, room, rank), place)
        limits = plan.limits
    boot = Boot(
        settings=settings,
        rank=rank,
        limits=limits,
        model_directory=str(files.directory),
        config_path=str(files.config),
        text=files.text,
        served=_served(settings, files, limits),
        backend=backend,
        threads=kernel_threads(engine.threads, settings.nodes.count("localhost")),
        device=wanted,
        version=version(),
        log_json=log_json,
        bus=bus,
    )
    return Deployment(boot, plan, room)


def _bus(settings: Settings, backend: str, rank: int, *, apart: bool) -> BusBoot | None:
    """This rank's lanes where ranks sum over RoCE; scripted ones sum nothing."""
    path = path_of(settings.engine.collective, backend, apart=apart or not is_local(settings))
    if path is not Route.VERBS or backend == "scripted":
        return None
    return BusBoot(bus_lanes(settings, rank))


def model_files(settings: Settings) -> ModelFiles:
    """Where the model is; the demo model is fetched where it is absent."""
    model = settings.model
    if model == DEMO_MODEL:
        model = str(ensure_demo(progress=_say_progress()))
    return find_model(model, weights=settings.engine.load == "checkpoint")


def _lacks(settings: Settings, files: ModelFiles, device: Device) -> tuple[str, ...]:
    config = read_json(files.config)
    with named(files.config):
        return family_of(config).lacks(config, settings.world_size, device)


def uncomputed(
    settings: Settings, config: dict[str, Any], backend: str, device: Device | None = None
) -> tuple[str, ...]:
    """Why `backend` does not compute the model of this config.json as the settings want it, a line
    for each key; on CUDA on a device like `device` (None: whatever some device takes)."""
    beyond = family_of(config).missing(backend, config, settings.world_size, device)
    return (*beyond, *model_forms(settings.engine).missing(backend))


def _require_computed(
    settings: Settings, files: ModelFiles, backend: str, device: Device | None = None
) -> None:
    config = read_json(files.config)
    with named(files.config):
        for missing in uncomputed(settings, config, backend, device):
            raise ConfigError(missing)


def _plan(
    settings: Settings, files: ModelFiles, choice: Choice, room: Room, lanes: int
) -> MemoryPlan:
    _require_computed(settings, files, choice.backend, choice.device)
    sizes = memory_settings(settings, choice.backend, unified=room.unified, lanes=lanes)
    config = read_json(files.config)
    with named(files.config):
        return plan_memory(config, sizes, settings.world_size)


def sharers(settings: Settings, backend: str, room: Room, rank: int) -> int:
    """Ranks, this one among them, that what is free in `room` is for: on CPUs, and where a GPU's
    memory is the host's, all of this host. Two ranks never share a GPU."""
    is_hosts = backend == "cpu" or room.unified
    return settings.nodes.count(settings.nodes[rank]) if is_hosts else 1


def memory_settings(
    settings: Settings, backend: str, *, unified: bool, lanes: int = 0
) -> MemorySettings:
    """What of the settings sizes an engine. `lanes` are the RoCE bus's, 0: there is none."""
    engine = settings.engine
    return MemorySettings(
        slots=engine.max_concurrency,
        kv_capacity=engine.kv_capacity,
        candidates=engine.sampling_candidates,
        embed_sharding=engine.embed_sharding,
        forms=model_forms(engine),
        backend=backend,
        unified=unified,
        depth=pipeline_depth(engine.pipeline_depth, backend),
        graphs=engine.decode_graph,
        prefix_cache_gib=engine.prefix_cache_gib,
        prefill=engine.prefill,
        ngram_table=engine.ngram_table,
        ngram_table_model=engine.ngram_table_model,
        cold_gib=cold_gib(settings),
        lanes=lanes,
    )


def cold_gib(settings: Settings) -> float:
    """GiB of disk for the prefix cache's second tier, 0 for none."""
    if not settings.nvme_cache.enabled:
        return 0.0
    if not settings.engine.prefix_cache_gib:
        _log.warning("nvme_cache.enabled: needs engine.prefix_cache_gib; there is no disk tier")
    return settings.nvme_cache.capacity_gib


def kernel_threads(wanted: int, ranks: int = 1) -> int:
    """Threads of the CPU backend, as many as Numba starts at most unless fewer are wanted; where
    several `ranks` share this host, its share of them."""
    cores = len(os.sched_getaffinity(0))
    told = os.environ.get("NUMBA_NUM_THREADS", "")
    if told.isascii() and told.isdigit() and int(told):
        cores = min(cores, int(told))
    if wanted > cores:
        raise ConfigError(f"engine.threads: {wanted}, this process may use {cores} cores")
    return wanted or max(1, cores // max(1, ranks))


def _scripted_limits(settings: Settings, directory: Path) -> EngineLimits:
    engine = settings.engine
    codec = TextCodec.load(directory)
    vocab = codec.tokenizer.vocab_size
    blocks = -(-engine.kv_capacity // SCRIPTED_BLOCK_TOKENS)
    if blocks > SCRIPTED_BLOCKS:
        raise ConfigError(
            f"engine.kv_capacity: {engine.kv_capacity} tokens, the scripted engine holds at most "
            f"{SCRIPTED_BLOCKS * SCRIPTED_BLOCK_TOKENS}"
        )
    pool = blocks * SCRIPTED_BLOCK_TOKENS
    lines = load_script(Path(engine.script), vocab) if engine.script else []
    return EngineLimits(
        slots=engine.max_concurrency,
        vocab_size=vocab,
        position_ceiling=min(_positions(directory / "config.json", pool), pool),
        block_tokens=SCRIPTED_BLOCK_TOKENS,
        blocks=blocks,
        chunk_align=SCRIPTED_BLOCK_TOKENS,
        chunk_limit=SCRIPTED_CHUNK_TOKENS,
        candidates=engine.sampling_candidates,
        max_drafts=max_drafts(lines),
        depth=pipeline_depth(engine.pipeline_depth, "scripted", drafts=max_drafts(lines)),
        snapshots=prefix_snapshots(engine.prefix_cache_gib, 0),
    )


def _positions(config: Path, default: int) -> int:
    """`max_position_embeddings` of a config.json, `default` where there is no such key or file."""
    stated = (read_object(config) or {}).get("max_position_embeddings", default)
    if isinstance(stated, bool) or not isinstance(stated, int) or stated < 1:
        raise CheckpointError(
            f"{config}: max_position_embeddings: expected an integer of at least 1, got {stated!r}"
        )
    return stated


def _template_kwargs(
    engine: EngineSettings, efforts: Mapping[str, Mapping[str, bool | str]]
) -> dict[str, bool | str]:
    """The deployment's template variables; the two names of the thinking switch become one, an
    effort what the model's template knows it by."""
    given = dict(engine.default_chat_template_kwargs)
    if "thinking" in given:
        given["enable_thinking"] = given.pop("thinking")
    effort = given.pop("reasoning_effort", None)
    if effort is None:
        return given
    asked = efforts.get(str(effort))
    if asked is None:
        known = ", ".join(efforts) or "no effort"
        raise ConfigError(
            "engine.default_chat_template_kwargs.reasoning_effort: "
            f"the model knows {known}, got {effort}"
        )
    return {**asked, **given}


def _served(settings: Settings, files: ModelFiles, limits: EngineLimits) -> ServedModel:
    engine = settings.engine
    name = engine.model_alias or settings.model
    generation = (files.text and read_object(files.directory / "generation_config.json")) or {}
    template = load_template(files.directory) if files.text else None
    efforts = {} if template is None else efforts_of(template, {})
    return ServedModel(
        id=name,
        vocab_size=limits.vocab_size,
        position_ceiling=limits.position_ceiling,
        kv_pool_tokens=limits.blocks * limits.block_tokens,
        cut_tokens=limits.chunk_align if limits.snapshots and not limits.paged_only else 0,
        aliases=() if name == settings.model else (settings.model,),
        sampling=_sampling(sampling_defaults(generation), settings.sampling),
        template_kwargs=_template_kwargs(engine, efforts),
        efforts=efforts,
        default_max_tokens=engine.default_max_tokens,
        ping_interval=settings.http.sse_ping_interval,
        created=int(files.directory.stat().st_mtime),
        no_eos=engine.no_eos,
        reasoning_in_content=engine.reasoning_in_content,
        whole_arguments=engine.tool_args == "whole",
        text=files.text,
        # Ahead of verdicts, ranks have no order of their own for what scoring gathers.
        scores=settings.world_size == 1 or limits.depth == 0,
        tools=template is not None and template.reads("tool_calls"),
    )


def _sampling(found: SamplingParams, told: SamplingSettings) -> SamplingParams:
    """generation_config.json's defaults under the deployment's own."""
    own = {
        name: value
        for name, value in structs.asdict(told).items()
        if value is not None and name != "seed"
    }
    return with_top_p(structs.replace(found, **own))


def explain(deployment: Deployment) -> None:
    """Say in the log what was settled."""
    boot, plan, room = deployment
    where = {"cpu": f" on {boot.threads} threads", "cuda": f" on device {boot.device}"}
    log.log_event(
        _log,
        f"engine {boot.backend}{where.get(boot.backend, '')}",
        directory=boot.model_directory,
        slots=boot.limits.slots,
        blocks=boot.limits.blocks,
        block_tokens=boot.limits.block_tokens,
        position_ceiling=boot.limits.position_ceiling,
    )
    if not boot.text:
        _log.warning("no tokenizer: only token ids are served, on /v1/completions")
    if plan is not None and room is not None:
        items = ", ".join(f"{item.name} {item.bytes / MIB:.0f}" for item in plan.items)
        sizes = {item.name: item.bytes for item in plan.items}
        free = f"{room.free_bytes / MIB:.0f} MiB free {room.name}"
        text = f"memory plan: {plan.total / MIB:.0f} MiB of {free} ({items})"
        log.log_line(_log, text, {"items": sizes, "free_bytes": room.free_bytes})
        for note in plan.notes:
            _log.info("%s", note)


def _say_progress() -> Callable[[str, int, int], None]:
    """Fetching speaks in the log: one line a stage and every quarter."""
    said: dict[str, int] = {}

    def progress(stage: str, done: int, total: int) -> None:
        quarter = done * 4 // total if total else 0
        if said.get(stage, -1) < quarter:
            said[stage] = quarter
            log.log_event(_log, f"demo model: {stage}", percent=quarter * 25)

    return progress
