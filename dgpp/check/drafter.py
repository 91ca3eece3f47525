"""Compares a block drafter with expected values, fed by its target as it would be in service."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.check.compare import left_out
from dgpp.check.expected import Array, Expected, Tolerances
from dgpp.check.forward import CHUNK, CheckOptions, engine_limits
from dgpp.check.judge import Float32Judge
from dgpp.check.trace import SLOT
from dgpp.check.world import device_of, run_world
from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.model_engine import ModelEngine
from dgpp.errors import ConfigError
from dgpp.models.dflash2.config import parse, require_target
from dgpp.models.dflash2.model import DFlash2
from dgpp.models.observer import Unconcerned
from dgpp.models.registry import family_of
from dgpp.models.shard import ALONE, Shard
from dgpp.models.sources import CheckedWeights, LoadedWeights
from dgpp.net.collective import Collective
from dgpp.sample.params import SamplingParams
from dgpp.sched.plan import Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids
from dgpp.state.pools import StatePools
from kernels_numba.backend import Rows, Tensor

F32Array = npt.NDArray[np.float32]
ARRAYS = ("ids", "taps", "anchor_pos", "anchor_id", "draft_ids", "cand_ids", "cand_logits")


class BlockFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Errors are largest absolute differences. Of every block: the tokens drafted, the candidates
    they were taken from and their scores."""

    taps_max_abs: float
    hidden_max_abs: float
    candidate_logits_max_abs: float
    scores_max_abs: float
    candidates_equal: bool
    drafts_equal: int
    drafts_total: int
    not_compared: dict[str, str]


class DrafterReport(BlockFindings, frozen=True, kw_only=True):
    """`failures` says in words what is not near enough."""

    family: str
    variant: str
    backend: str
    world: int
    ok: bool
    failures: tuple[str, ...] = ()


class DrafterRun:
    """One rank: the prompt through the target in chunks, a block behind each anchor."""

    def __init__(self, engine: ModelEngine, drafter: DFlash2, expected: Expected) -> None:
        self._engine, self._drafter = engine, drafter
        self._ids = expected["ids"].astype(np.int32)
        anchors = zip(expected["anchor_pos"], expected["anchor_id"], strict=True)
        self._anchors = [(int(position), int(token)) for position, token in anchors]
        self._taps: dict[int, list[F32Array]] = {layer: [] for layer in drafter.taps}
        block = drafter.config.dflash_config.block_size
        backend, config = engine.backend, drafter.config
        self._hidden = backend.tensor(config.hidden_size, wide=True)
        self._logits = backend.logits(block, len(engine.model.vocabulary))
        self._projected = backend.tensor(config.dflash_config.selector_rank, wide=True)
        self.hidden: list[F32Array] = []
        self.ids: list[npt.NDArray[np.int32]] = []
        self.logits: list[F32Array] = []
        self.scores: list[F32Array] = []
        self.drafts: list[npt.NDArray[np.int32]] = []

    def run(self) -> None:
        engine, total = self._engine, len(self._ids)
        request = Submit("check-0", pack_ids(self._ids), 1, SamplingParams(temperature=0.0))
        blocks = tuple(range(-(-total // engine.limits.block_tokens)))
        engine.forward(Plan(0, opens=(Open(SLOT, request, blocks),)))
        engine.observer = _Watch(self)
        for start in range(0, total, CHUNK):
            count = min(CHUNK, total - start)
            last = start + count == total
            engine.forward(Plan(1 + start, prefills=(PrefillChunk(SLOT, start, count, last),)))
            self._drafter.extend(engine.rows)
            for position, token in self._anchors:
                if start < position <= start + count:
                    self._draft(position, token)

    def hidden_states(self) -> list[F32Array]:
        """The target's residual behind each tapped layer."""
        return [np.concatenate(parts) for parts in self._taps.values()]

    def hidden_of(self, layer: int, rows: Rows, x: Tensor) -> None:
        self._drafter.tap(layer, rows, x)
        if layer in self._taps:
            self._taps[layer].append(self._engine.backend.read(x, rows.count))

    def _draft(self, position: int, anchor: int) -> None:
        engine, drafter = self._engine, self._drafter
        rows, block = engine.rows, drafter.config.dflash_config
        rows.count = size = block.block_size
        rows.tokens[:size] = [anchor, *[block.mask_token_id] * (size - 1)]
        rows.positions[:size] = np.arange(position, position + size)
        rows.slots[:size] = SLOT
        engine.backend.begin(rows)
        drafter.forward(rows, engine.model.embedding)
        drafter.final_hidden(rows, self._hidden)
        self.hidden.append(engine.backend.read(self._hidden, size))
        drafter.logits(range(1, size), engine.model.head, self._logits)
        logits = engine.read_logits(self._logits, size - 1)
        order = np.argsort(-logits, axis=1, kind="stable")[:, : block.selector_top_k]
        ids: npt.NDArray[np.int32] = order.astype(np.int32)
        held = np.take_along_axis(logits, ids, axis=1)
        projected = drafter.selector.project(rows, self._hidden, self._projected)[1:]
        drafts, scores = drafter.selector.walk(rows, anchor, projected, ids, held)
        self.ids.append(ids)
        self.logits.append(held)
        self.scores.append(scores)
        self.drafts.append(drafts)


class _Watch(Unconcerned):
    """The observer of a run: what follows layer index − 1."""

    def __init__(self, run: DrafterRun) -> None:
        self._run = run

    def hidden(self, index: int, rows: Rows, x: Tensor) -> None:
        self._run.hidden_of(index - 1, rows, x)


def run_rank(
    checkpoint: Checkpoint,
    target: Checkpoint,
    expected: Expected,
    options: CheckOptions,
    rank: int,
    collective: Collective | None,
) -> DrafterRun:
    config = parse(checkpoint.config)
    require_target(config, family_of(target.config).settle(target.config))
    limits = engine_limits(target.config, len(expected["ids"]))
    engine = ModelEngine(
        target,
        limits,
        options.threads,
        backend=options.backend,
        device=device_of(rank, options.backend, options.devices),
        collective=collective,
        embed_sharding=options.embed_sharding,
    )
    shard = ALONE if collective is None else Shard(collective.rank, collective.world)
    trial = Binding(checkpoint)
    DFlash2(config, CheckedWeights(trial, shard))
    trial.finish()
    drafter = DFlash2(config, LoadedWeights(Binding(checkpoint), engine.backend, shard))
    pools = StatePools(
        drafter.state, engine.backend, slots=limits.slots, blocks=1, block_tokens=CHUNK
    )
    drafter.prepare(engine.backend, pools, limits.position_ceiling, collective)
    run = DrafterRun(engine, drafter, expected)
    run.run()
    return run


def check_drafter(
    checkpoint: Checkpoint,
    target: Checkpoint,
    expected: Expected,
    tolerances: Tolerances,
    options: CheckOptions,
) -> DrafterReport:
    """Run the prompt of `expected` through the target in chunks, draft behind every anchor, and
    compare by the float32 rule. Raises CheckpointError where drafter and target do not fit,
    ConfigError for options that do not apply."""
    if options.per_layer:
        raise ConfigError("--per-layer: a block drafter's expected values hold no layers' inputs")
    if options.rule != "float32":
        raise ConfigError(f"--rule: a block drafter is compared by float32, not by {options.rule}")
    rank_of = partial(run_rank, checkpoint, target, expected, options)
    runs = run_world(options.world, rank_of, options.backend, options.devices)
    judge = Float32Judge(tolerances)
    for rank, other in enumerate(runs[1:], 1):
        if not np.array_equal(np.stack(other.drafts), np.stack(runs[0].drafts)):
            judge.failures.append(f"rank {rank}: drafts not those of rank 0")
    findings = compare_blocks(judge, runs[0], expected)
    return DrafterReport(
        family="dflash2",
        variant=tolerances.variant,
        backend=options.backend,
        world=options.world,
        ok=not judge.failures,
        failures=tuple(judge.failures),
        **{name: getattr(findings, name) for name in findings.__struct_fields__},
    )


def compare_blocks(judge: Float32Judge, run: DrafterRun, expected: Expected) -> BlockFindings:
    """Every array of `expected` against what a run gave."""
    ids, drafts = np.stack(run.ids), np.stack(run.drafts)
    candidates = _same(judge, "candidates", ids, expected["cand_ids"])
    equal = int(np.sum(drafts == expected["draft_ids"]))
    _same(judge, "drafts", drafts, expected["draft_ids"])
    taps = judge.near("taps", np.stack(run.hidden_states()), expected["taps"])
    hidden = judge.near("block hidden", np.stack(run.hidden), expected["block_hidden"])
    logits = judge.near("candidate logits", np.stack(run.logits), expected["cand_logits"])
    scores = judge.near("path scores", np.stack(run.scores), expected["path_scores"])
    return BlockFindings(
        taps_max_abs=taps,
        hidden_max_abs=hidden,
        candidate_logits_max_abs=logits,
        scores_max_abs=scores,
        candidates_equal=candidates,
        drafts_equal=equal,
        drafts_total=drafts.size,
        not_compared=left_out(judge, expected),
    )


def _same(judge: Float32Judge, name: str, got: Array, wanted: Array) -> bool:
    equal = bool(np.array_equal(got, wanted))
    if not equal:
        judge.failures.append(f"{name}: not identical")
    return equal


def open_and_check_drafter(
    directory: Path, target: Path, expected: Path, tolerances: Tolerances, options: CheckOptions
) -> DrafterReport:
    """`check_drafter` from paths. Raises CheckpointError for what cannot be opened."""
    found = Expected(expected, ARRAYS)
    return check_drafter(Checkpoint(directory), Checkpoint(target), found, tolerances, options)
