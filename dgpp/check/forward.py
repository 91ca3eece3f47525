"""Compares a checkpoint's forward pass, driven as it is served, with expected values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from dgpp.check.bf16 import Bf16Judge
from dgpp.check.compare import Run, compare, draft_levels
from dgpp.check.expected import BOUNDED, ROUNDED, Array, Expected, Tolerances
from dgpp.check.judge import Float32Judge, Judge
from dgpp.check.report import ForwardReport
from dgpp.check.trace import Trace, layer_outputs
from dgpp.check.world import device_of, run_world
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.model_engine import ModelEngine
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.dflash2.config import is_drafter
from dgpp.models.forms import AS_STORED, ModelForms
from dgpp.models.plan import BLOCK_TOKENS, MemorySettings, plan_memory
from dgpp.models.registry import family_of
from dgpp.models.tables import Tables
from dgpp.net.collective import Collective
from dgpp.sched.limits import EngineLimits

CHUNK = 16
"""Rows per prefill chunk and cache block of a check: small, so that fixtures cross borders."""
SLOTS = 2


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a check runs. `per_layer` feeds each layer the reference's own input, so that errors do
    not add up. `threads` are each rank's; rank r of a `world` takes GPU r of `devices`, or of all
    where none are named, as far as there are. Tables of n-grams are `mapped` or copied, from the
    directory `tables` where the checkpoint has none. `forms` are those that the model is held in,
    but for rounded rows, which are checked where there are values of them."""

    threads: int = 2
    per_layer: bool = False
    backend: str = "cpu"
    rule: str = "float32"
    world: int = 1
    devices: tuple[int, ...] = ()
    embed_sharding: str = "replicated"
    mapped: bool = False
    tables: Path | None = None
    forms: ModelForms = AS_STORED


def engine_limits(config: dict[str, object], tokens: int, prefill: str = "exact") -> EngineLimits:
    """A small engine whose blocks and chunks a fixture's prompt crosses several times."""
    blocks = 2 * -(-tokens // CHUNK)
    settings = MemorySettings(slots=SLOTS, kv_capacity=blocks * CHUNK, prefill=prefill)
    limits = plan_memory(config, settings).limits
    if limits.position_ceiling < tokens:
        message = (
            f"the expected values need {tokens} positions, the model has {limits.position_ceiling}"
        )
        raise CheckpointError(message)
    # Rows of more tokens than a chunk has need blocks that hold them.
    block = CHUNK if limits.block_tokens == BLOCK_TOKENS else limits.block_tokens
    return msgspec.structs.replace(
        limits, block_tokens=block, blocks=blocks, chunk_align=CHUNK, chunk_limit=CHUNK
    )


def _float32_gaps(
    checkpoint: Checkpoint,
    expected: Expected,
    limits: EngineLimits,
    threads: int,
    forms: ModelForms,
) -> dict[int, Array]:
    """Per MoE layer, how far float32 holds the last expert chosen from the first left out."""
    engine = ModelEngine(checkpoint, limits, threads, forms=forms)
    trace = Trace(engine, expected["ids"], _answer(expected))
    _, taps = layer_outputs(engine, trace, expected["hidden"])
    return {layer: taps.gaps(layer) for layer in taps.moe_layers}


def _answer(expected: Expected) -> Array:
    return expected["greedy"] if "greedy" in expected else np.zeros(0, np.int32)


class RankRun(NamedTuple):
    """One rank's way through the prompt, and the backend that it ran on."""

    run: Run
    backend: str


def run_rank(
    checkpoint: Checkpoint,
    expected: Expected,
    limits: EngineLimits,
    options: CheckOptions,
    rank: int,
    collective: Collective | None,
    *,
    forms: ModelForms = AS_STORED,
) -> RankRun:
    """One rank's way through the prompt of `expected`, and through its answer."""
    tables = None if options.tables is None else Checkpoint(options.tables)
    engine = ModelEngine(
        checkpoint,
        limits,
        options.threads,
        drafts=bool(draft_levels(expected)) or "dspark_logits" in expected,
        backend=options.backend,
        device=device_of(rank, options.backend, options.devices),
        collective=collective,
        embed_sharding=options.embed_sharding,
        forms=forms,
        tables=Tables(options.mapped, tables),
    )
    chain = len(expected["mtp_chain_ids"]) if "mtp_chain_ids" in expected else 0
    trace = Trace(engine, expected["ids"], _answer(expected), chain, _anchors(expected))
    trace.run()
    states, taps = list(trace.taps.hidden_states()), trace.taps
    alone = _alone(expected, options, states)
    if alone:
        outputs, taps = layer_outputs(engine, trace, expected["hidden"])
        states = [states[0], *outputs]
    return RankRun(Run(trace, states, taps, alone), engine.backend.name)


def _anchors(expected: Expected) -> list[tuple[int, int]]:
    """Positions behind which blocks are drafted, and the token after each."""
    if "dspark_logits" not in expected:
        return []
    tokens = expected["dspark_next_id"]
    # Of bounded prefill there may be the last anchors alone.
    positions = expected["dspark_anchor_pos"][-len(tokens) :]
    pairs = zip(positions, tokens, strict=True)
    return [(int(position), int(token)) for position, token in pairs]


def _alone(expected: Expected, options: CheckOptions, states: list[Array]) -> bool:
    """Whether each layer is fed the reference's own input. Raises ConfigError where that is not
    told."""
    if not options.per_layer or len(states) != len(expected["hidden"]):
        return False
    if states[0].size != expected["hidden"][0].size:
        raise ConfigError("--per-layer: `hidden` is the mean of streams, which is no layer's input")
    return True


def _require_served(checkpoint: Checkpoint, expected: Expected, options: CheckOptions) -> None:
    """Raises ConfigError or CheckpointError for what such a check would only seem to compare."""
    if is_drafter(checkpoint.config):
        raise ConfigError("--target: a block drafter is checked beside its target; name that")
    if options.per_layer and "hidden" not in expected:
        raise ConfigError("--per-layer: the expected values have no `hidden`, the layers' inputs")
    images = [name for name in expected.arrays if name.endswith("_pixel_values")]
    if images:
        message = f"the expected values are of a prompt with images ({images[0]}), not served"
        raise CheckpointError(message)


def _disagreements(runs: list[RankRun]) -> list[str]:
    """What is not the same, bit for bit, on every rank."""
    first, found = runs[0].run, []
    for rank, (run, _) in enumerate(runs[1:], 1):
        pairs = {
            f"hidden after layer {layer}": (state, first.states[layer + 1])
            for layer, state in enumerate(run.states, -1)
        }
        for name in ("logits", "greedy_logits", "chain_logits"):
            own, other = getattr(run.trace, name), getattr(first.trace, name)
            if own:
                pairs[name.replace("_", " ")] = (np.concatenate(own), np.concatenate(other))
        for level, own in enumerate(run.trace.draft_logits):
            other = first.trace.draft_logits[level]
            pairs[f"logits of draft level {level}"] = (np.concatenate(own), np.concatenate(other))
        for own_block, block in zip(run.trace.blocks, first.trace.blocks, strict=True):
            pairs[f"block {block.tokens.tolist()}"] = (own_block.logits, block.logits)
        pairs["greedy tokens"] = (np.array(run.trace.greedy), np.array(first.trace.greedy))
        found += [
            f"rank {rank}: {name} not those of rank 0"
            for name, (own, other) in pairs.items()
            if not np.array_equal(own, other)
        ]
    return found


def check_checkpoint(
    checkpoint: Checkpoint, expected: Expected, tolerances: Tolerances, options: CheckOptions
) -> ForwardReport:
    """Run the prompt of `expected` through an engine in chunks, then decode its answer, and compare
    by the rule of `options`; in a world rank 0's values with the reference, the others' with rank
    0's. Cached rows are as they were computed, and all layers run the whole prompt; where there
    are values of rounded rows, of bounded prefill, or of both, it runs once more for each.

    Raises CheckpointError where the rule is bf16 and `tolerances` states no noise, ConfigError for
    options that do not apply.
    """
    _require_served(checkpoint, expected, options)
    how = _How(checkpoint, expected, tolerances, options)
    report = how.bounded(how.check("", ModelForms(rounded_rows=False)), "")
    if "logits" in expected.part(ROUNDED):
        rounded = how.bounded(how.check(ROUNDED, AS_STORED), ROUNDED)
        report = _beside(report, "rounded rows", rounded=rounded)
    return report


def _beside(report: ForwardReport, label: str, **part: ForwardReport) -> ForwardReport:
    """`report` with a part of it, what fails in which fails in all."""
    (found,) = part.values()
    failures = tuple(f"{label}: {failure}" for failure in found.failures)
    return msgspec.structs.replace(
        report, ok=report.ok and found.ok, failures=report.failures + failures, **part
    )


class _How(NamedTuple):
    """What is checked, against what, and how."""

    checkpoint: Checkpoint
    expected: Expected
    tolerances: Tolerances
    options: CheckOptions

    def bounded(self, report: ForwardReport, prefix: str) -> ForwardReport:
        """`report` of the part `prefix` beside that of bounded prefill, where there are values."""
        if "greedy" not in self.expected.part(prefix + BOUNDED):
            return report
        forms = ModelForms(rounded_rows=prefix == ROUNDED)
        found = self.check(prefix + BOUNDED, forms, prefill="bounded")
        return _beside(report, "bounded prefill", bounded=found)

    def check(self, prefix: str, forms: ModelForms, prefill: str = "exact") -> ForwardReport:
        """Of the arrays that begin with `prefix`."""
        held = self.options.forms
        forms = msgspec.structs.replace(held, rounded_rows=forms.rounded_rows)
        checkpoint, whole, tolerances, options = self
        expected = whole.part(prefix)
        tokens = len(expected["ids"]) + len(_answer(expected))
        limits = engine_limits(checkpoint.config, tokens, prefill)
        rank_of = partial(run_rank, checkpoint, expected, limits, options, forms=forms)
        runs = run_world(options.world, rank_of, options.backend, options.devices)
        run, backend = runs[0]
        gaps = partial(_float32_gaps, checkpoint, expected, limits, options.threads, forms)
        judge = make_judge(options.rule, tolerances, gaps if run.alone else None)
        judge.failures.extend(_disagreements(runs))
        if prefill == "bounded":
            floor = max(0, len(expected["ids"]) - limits.reread)
            if int(expected["bounded_floor"]) != floor:
                judge.failures.append(f"the tail begins at {floor}, not where it should")
        findings = compare(judge, run, expected)
        return ForwardReport(
            family=family_of(checkpoint.config).name,
            variant=tolerances.variant,
            backend=backend,
            world=options.world,
            rule=judge.rule,
            ok=not judge.failures,
            flips=tuple(judge.flips),
            failures=tuple(judge.failures),
            **{name: getattr(findings, name) for name in findings.__struct_fields__},
        )


def make_judge(
    rule: str, tolerances: Tolerances, gaps: Callable[[], Mapping[int, Array]] | None
) -> Judge:
    """The judge of `rule`. Raises CheckpointError where it has nothing to go by."""
    if rule == "float32":
        return Float32Judge(tolerances)
    if tolerances.noise is None:
        message = "rule bf16: no index.json states what the reference's own bf16 run costs"
        raise CheckpointError(message)
    return Bf16Judge(tolerances.noise, gaps)


def open_and_check(
    directory: Path, expected: Path, tolerances: Tolerances, options: CheckOptions
) -> ForwardReport:
    """`check_checkpoint` from paths. Raises CheckpointError for what cannot be opened."""
    return check_checkpoint(Checkpoint(directory), Expected(expected), tolerances, options)
