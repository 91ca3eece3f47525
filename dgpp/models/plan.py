"""The memory plan: what an engine will hold, item by item, from config.json and settings alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dgpp.cache.cold_room import ColdRoom, cold_room, page_bytes
from dgpp.checkpoint.draft_vocab import read_draft_vocab
from dgpp.errors import MemoryPlanError
from dgpp.models.forms import AS_STORED, ModelForms
from dgpp.models.registry import FamilyConfig, Model, family_of
from dgpp.models.shard import Shard
from dgpp.models.sources import PlannedWeights
from dgpp.models.tables import Tables
from dgpp.models.work import StepWork, step_work
from dgpp.net.slab import slab_bytes
from dgpp.net.verbs.frames import geometry_of
from dgpp.net.verbs.layout import Layout
from dgpp.sched.limits import EngineLimits
from dgpp.state.declaration import CPU_CACHE, CUDA_CACHE
from kernels_numba.gpu.graph import reaches
from kernels_numba.gpu.nccl import gathered_bytes
from kernels_numba.gpu.ranks import exchange_bytes
from kernels_numba.weights import Form

BLOCK_TOKENS = 64
CHUNK_ALIGN = 64
CHUNK_LIMIT = 512
CUDA_CHUNK_LIMIT = 8192
"""A GPU reads the weights of nearly all experts in every step of a prompt: at 8,192 tokens once for
as many as the matrix units need to hide it."""
UNIFIED_CHUNK_LIMIT = 2048
"""Where the GPU shares the host's memory, arithmetic is slow, and a step of a long prompt should
end within seconds."""
HEADROOM = 1 << 30
"""Bytes that must stay free beside the plan."""
RUNTIME = 160 << 20
"""Interpreter, libraries, compiled kernels and kernel scratch of an engine process."""
CUDA_RUNTIME = 1 << 30
"""The driver's context, loaded kernels, partial results of attention, an allocator's remainders."""
GRAPH_LAYER_BYTES = 40 << 10
"""What one layer takes in one recorded decode step."""
MOST_SNAPSHOTS = 4096
MIB = 1 << 20
WEIGHTS = "weights: "


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that size an engine.

    `kv_capacity` tokens in all slots together, rounded up to blocks. `max_positions` bounds one
    request; 0 takes what the model and the capacity allow. `drafts` loads draft layers. `backend`
    decides what a cached value takes. `unified`: the device's memory is the host's. `depth` plans
    go out ahead of a verdict. `graphs`: decode steps are recorded where the backend can.
    `prefix_cache_gib` is for the prefix cache's snapshots; 0: no such cache. `forms` are those that
    the model is held in. `prefill` bounded: layers that may run the end of a prompt alone do.
    `ngram_table` mmap: tables stay in their files, those of `ngram_table_model` where it is told.
    `cold_gib` of disk are the prefix cache's second tier. `lanes` are the RoCE bus's, 0: the ranks
    sum otherwise.
    """

    slots: int = 8
    kv_capacity: int = 8192
    max_positions: int = 0
    candidates: int = 128
    forms: ModelForms = AS_STORED
    drafts: bool = False
    backend: str = "cpu"
    embed_sharding: str = "replicated"
    unified: bool = False
    depth: int = 0
    graphs: bool = True
    prefix_cache_gib: float = 0.0
    prefill: str = "exact"
    ngram_table: str = "resident"
    ngram_table_model: str = ""
    cold_gib: float = 0.0
    lanes: int = 0


ROTARY = "rotary tables"


class MemoryItem(msgspec.Struct, frozen=True):
    name: str
    bytes: int


class MemoryPlan(msgspec.Struct, frozen=True):
    """`items` largest first; `token_bytes` is what one more token of kv_capacity would add;
    `request_bytes` what a request keeps beside its tokens;
    `work` what a step reads and multiplies; `notes` are for the log."""

    items: tuple[MemoryItem, ...]
    limits: EngineLimits
    token_bytes: int
    request_bytes: int
    work: StepWork
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def weight_bytes(self) -> int:
        return sum(item.bytes for item in self.items if item.name.startswith(WEIGHTS))


def _chunk_limit(settings: MemorySettings) -> int:
    if settings.backend != "cuda":
        return CHUNK_LIMIT
    return UNIFIED_CHUNK_LIMIT if settings.unified else CUDA_CHUNK_LIMIT


def _runtime(settings: MemorySettings) -> int:
    if settings.backend != "cuda":
        return RUNTIME
    return CUDA_RUNTIME + (RUNTIME if settings.unified else 0)


def _graphs(settings: MemorySettings, limits: EngineLimits, layers: int) -> dict[str, int]:
    if settings.backend != "cuda" or not settings.graphs:
        return {}
    graphs = (limits.depth + 1) * limits.slots * len(reaches(limits.position_ceiling))
    return {"decode graphs": GRAPH_LAYER_BYTES * layers * graphs}


class _Cache(NamedTuple):
    """What a block and a request take, and how many of them there are."""

    block_tokens: int
    block_bytes: int
    request_bytes: int
    blocks: int
    snapshots: int
    cold: ColdRoom

    @property
    def page_bytes(self) -> int:
        return page_bytes(self.block_bytes)


def _cache(model: Model, settings: MemorySettings, positions: int) -> _Cache:
    """`positions` is what the model can take."""
    plain = CUDA_CACHE if settings.backend == "cuda" else CPU_CACHE
    form = msgspec.structs.replace(plain, kv_dtype=settings.forms.kv_dtype)
    tokens = model.state.block_tokens(BLOCK_TOKENS)
    blocks = -(-settings.kv_capacity // tokens)
    block, request = model.state.block_bytes(form, tokens), model.state.snapshot_bytes(form)
    snapshots = prefix_snapshots(settings.prefix_cache_gib, request)
    longest = -(-_ceiling(settings, positions, blocks * tokens) // tokens)
    cold = cold_room(settings.cold_gib if snapshots else 0, block, request, longest)
    return _Cache(tokens, block, request, blocks, snapshots, cold)


def _ceiling(settings: MemorySettings, positions: int, pool: int) -> int:
    """Tokens of the longest request where the model takes `positions`, the pool `pool`."""
    return min(positions, pool, settings.max_positions or pool)


def _limits(
    settings: MemorySettings, config: FamilyConfig, model: Model, cache: _Cache
) -> EngineLimits:
    pool = cache.blocks * cache.block_tokens
    return EngineLimits(
        slots=settings.slots,
        vocab_size=config.vocab_size,
        position_ceiling=_ceiling(settings, config.max_position_embeddings, pool),
        block_tokens=cache.block_tokens,
        blocks=cache.blocks,
        chunk_align=CHUNK_ALIGN,
        chunk_limit=_chunk_limit(settings),
        candidates=min(settings.candidates, config.vocab_size),
        depth=settings.depth,
        refeeds=not model.state.fixed,
        snapshots=cache.snapshots,
        snapshot_bytes=cache.request_bytes,
        reread=max(1, model.tail) if settings.prefill == "bounded" else 1,
        cold_pages=cache.cold.pages,
        cold_blob_pages=cache.cold.blob_pages,
        cold_page_bytes=cache.page_bytes,
    )


def _beside_weights(
    settings: MemorySettings, limits: EngineLimits, model: Model, cache: _Cache, world: int
) -> dict[str, int]:
    """Bytes by item of all that is no weight; an item of nothing is left out."""
    slots, narrow = settings.slots, settings.backend == "cuda"
    sizes = {
        "request state": cache.request_bytes * slots,
        "prefix snapshots": cache.request_bytes * cache.snapshots,
        "disk tier": (1 + cache.cold.blob_pages) * cache.page_bytes if cache.cold.pages else 0,
        **(_collective(settings, model.hidden, world) if world > 1 else {}),
    }
    return {
        "kv cache": cache.block_bytes * cache.blocks,
        "activations": model.workspace.row_bytes(narrow=narrow) * row_capacity(limits),
        ROTARY: 4 * limits.position_ceiling * model.rotary,
        "logits": 8 * slots * len(model.vocabulary) * (1 + settings.depth),
        "penalties and bias": 8 * slots * limits.vocab_size,
        "runtime": _runtime(settings),
        **{name: size for name, size in sizes.items() if size},
    }


def _collective(settings: MemorySettings, width: int, world: int) -> dict[str, int]:
    """Bytes of one rank's part of what ranks sum in, the rows themselves aside."""
    if settings.lanes:
        layout = Layout(geometry_of(settings.backend), settings.lanes, world)
        name, host = "RoCE bus", layout.bytes
    else:
        name, host = "collective", slab_bytes(world) // world
    if settings.backend != "cuda":
        return {name: host}
    # Which path it is follows from the devices, of which a plan does not know.
    device = max(exchange_bytes(world, width), gathered_bytes(world, width))
    return {name: device + (host if settings.unified else 0)}


def plan_memory(config: dict[str, Any], settings: MemorySettings, world: int = 1) -> MemoryPlan:
    """The plan of the rank of `world` that needs most. Raises CheckpointError for a model that is
    not served, ConfigError for a world that its sizes cannot be shared out to."""
    family = family_of(config)
    forms = settings.forms
    parsed = family.settle(config, forms)
    # Rank 0's slice of the vocabulary is the widest.
    shard = Shard(0, world, settings.embed_sharding == "vocab")
    tables = Tables(mapped=settings.ngram_table == "mmap")
    source = PlannedWeights(shard, tables, forms)
    model = family.build(parsed, source, drafts=settings.drafts)
    model.state.require_kv_dtype(forms.kv_dtype, family.name)
    cache = _cache(model, settings, parsed.max_position_embeddings)
    limits = _limits(settings, parsed, model, cache)
    sizes = {
        **{f"{WEIGHTS}{name}": size for name, size in source.items.items()},
        **_beside_weights(settings, limits, model, cache, world),
        **_graphs(settings, limits, parsed.num_hidden_layers),
    }
    if settings.drafts and forms.draft_vocab:
        table = source.items.get("head") or source.items["embedding"]
        sizes |= _draft_head(parsed, forms, shard, table / len(model.vocabulary))
    items = [MemoryItem(name, size) for name, size in sizes.items()]
    items.sort(key=lambda item: (-item.bytes, item.name))
    # What cannot be started is planned all the same.
    verb = "would be" if forms.unread(settings.backend) else "are"
    notes = [*source.changes.notes(verb), *_notes(forms, source, settings.backend, verb)]
    notes += [*_table_notes(settings, source), *_tail_notes(settings, limits)]
    target = source
    if settings.drafts:
        target = PlannedWeights(shard, tables, forms)
        family.build(parsed, target, drafts=False)
    read = len(model.vocabulary) / len(model.embedding.held)
    return MemoryPlan(
        tuple(items),
        limits,
        -(-cache.block_bytes // cache.block_tokens),
        cache.request_bytes,
        step_work(target.items, target.parameters, parsed, read),
        tuple(notes),
    )


def _tail_notes(settings: MemorySettings, limits: EngineLimits) -> list[str]:
    if settings.prefill != "bounded":
        return []
    if limits.reread == 1:
        return ["prefill bounded: every layer of this model reads whole prompts all the same"]
    last = f"later layers run the last {limits.reread} tokens of a prompt alone"
    return [f"prefill bounded: {last}; answers are not those of prefill exact"]


def _table_notes(settings: MemorySettings, source: PlannedWeights) -> list[str]:
    """What the start-up log says of tables, and of keys that ask for some where there are none."""
    named, notes = settings.ngram_table_model, []
    if not source.tabled:
        asked = {"ngram_table mmap": settings.ngram_table == "mmap", "ngram_table_model": named}
        return [f"{key}: the model has no tables of n-grams" for key, said in asked.items() if said]
    if named:
        notes.append(f"ngram_table_model {named}: tables are those of that checkpoint")
    if source.mapped:
        size = f"{source.mapped / (1 << 30):.1f} GiB"
        notes.append(f"ngram_table mmap: {size} of tables stay in their files")
    return notes


def _notes(forms: ModelForms, source: PlannedWeights, backend: str, verb: str) -> list[str]:
    """What the start-up log says of keys that change how the model is held; `verb` is "are" or what
    stands for it."""
    held, notes = source.changes.by_form, []
    for key, value, form in (
        ("dense_weights", forms.dense_weights, Form.FP8_BLOCK),
        ("bf16_weights", forms.bf16_weights, Form.BF12),
    ):
        if value != "checkpoint" and form not in held:
            notes.append(f"{key} {value}: no matrix of the model is left to it")
    if forms.bf16_weights == "bf12+bf16" and Form.BF12 in held:
        notes.append("bf16_weights bf12+bf16: bf12 alone, also for prompts; no bf16 beside it")
    if forms.fp8_head == "mma":
        notes.append(f"fp8_head mma: the {backend} backend has one kernel for any number of rows")
    if (rope_scaling := forms.rope_scaling) is not None:
        notes.append(
            f"rope_scaling {rope_scaling.rope_type}: factor {rope_scaling.factor:g} over "
            f"{rope_scaling.original_max_position_embeddings} positions"
        )
    if forms.kv_dtype != "bf16":
        notes.append(f"kv_dtype {forms.kv_dtype}: rows of cached context {verb} packed")
    elif backend != "cuda":
        notes.append("kv_dtype bf16: the CPU backend stores float32 rows")
    return notes


def _draft_head(
    config: FamilyConfig, forms: ModelForms, shard: Shard, row_bytes: float
) -> dict[str, int]:
    """The rows of the head that drafts are limited to, on the rank that has most of them."""
    ids = read_draft_vocab(Path(forms.draft_vocab).expanduser(), config.vocab_size)
    slices = [Shard(rank, shard.world).vocabulary(config.vocab_size) for rank in range(shard.world)]
    most = max(int(((ids >= own.start) & (ids < own.stop)).sum()) for own in slices)
    return {f"{WEIGHTS}draft head": math.ceil(most * row_bytes)}


def prefix_snapshots(gib: float, snapshot_bytes: int) -> int:
    """Entries of a prefix cache that may take `gib`: as many as there is room for their snapshots.
    Where a snapshot takes nothing, since blocks hold all state, the count is bounded all the same.
    """
    if gib <= 0:
        return 0
    return min(MOST_SNAPSHOTS, int(gib * 2**30) // max(1, snapshot_bytes))


def row_capacity(limits: EngineLimits) -> int:
    """Rows of one step: a full set of prefill chunks beside every slot's decode rows."""
    return limits.chunk_limit + limits.slots * (1 + limits.max_drafts)


def require_fit(
    plan: MemoryPlan, free_bytes: int, place: str = "here", headroom: int = HEADROOM
) -> None:
    """Raises MemoryPlanError when plan + headroom exceed the `free_bytes` at `place`, naming the
    largest items and the largest kv_capacity that fits."""
    if plan.total + headroom <= free_bytes:
        return
    tokens = _fitting(plan, free_bytes - headroom)
    alone = plan.weight_bytes + headroom > free_bytes
    less = "" if alone else "less of engine.max_concurrency or engine.prefix_cache_gib, or "
    largest = ", ".join(f"{item.name} {item.bytes // MIB} MiB" for item in plan.items[:4])
    remedy = (
        f"the largest engine.kv_capacity that fits is {tokens}"
        if tokens
        else f"no engine.kv_capacity fits: take {less}more ranks (world_size), or a smaller model"
    )
    message = (
        f"memory plan: {plan.total // MIB} MiB and {headroom // MIB} MiB of headroom exceed the "
        f"{free_bytes // MIB} MiB that are free {place}; largest: {largest}; {remedy}"
    )
    raise MemoryPlanError(message, tokens, weights=alone)


def _fitting(plan: MemoryPlan, room: int) -> int:
    """The largest kv_capacity with which the plan takes `room` bytes, 0 where there is none. Fewer
    tokens than the model's positions are fewer positions, too."""
    limits = plan.limits
    block = plan.token_bytes * limits.block_tokens
    rotary = sum(item.bytes for item in plan.items if item.name == ROTARY)
    turned = rotary * limits.block_tokens // limits.position_ceiling
    left = room - (plan.total - rotary - block * limits.blocks)
    tokens = left // max(1, block + turned) * limits.block_tokens
    if tokens > limits.position_ceiling:
        tokens = (left - rotary) // max(1, block) * limits.block_tokens
    return max(0, tokens)
