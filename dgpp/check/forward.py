"""Compares a checkpoint's forward pass, driven as it is served, with expected values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from dgpp.check.bf16 import Bf16Judge
from dgpp.check.expected import Array, Expected, Tolerances
from dgpp.check.judge import Float32Judge, Judge
from dgpp.check.report import ForwardReport, LayerError
from dgpp.check.trace import Taps, Trace, layer_outputs
from dgpp.check.world import device_of, run_world
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.base import EngineLimits
from dgpp.engine.model_engine import ModelEngine
from dgpp.errors import CheckpointError
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.registry import family_of
from dgpp.net.collective import Collective

CHUNK = 16
"""Rows per prefill chunk and cache block of a check: small, so that fixtures cross borders."""
SLOTS = 2


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a check runs. `per_layer` feeds each layer the reference's own input, so that errors do
    not add up. `threads` are each rank's; rank r of a `world` takes GPU r, as far as there are."""

    threads: int = 2
    per_layer: bool = False
    backend: str = "cpu"
    rule: str = "float32"
    world: int = 1
    embed_sharding: str = "replicated"


def engine_limits(config: dict[str, object], tokens: int) -> EngineLimits:
    """A small engine whose blocks and chunks a fixture's prompt crosses several times."""
    blocks = 2 * -(-tokens // CHUNK)
    settings = MemorySettings(slots=SLOTS, kv_capacity=blocks * CHUNK)
    limits = plan_memory(config, settings).limits
    if limits.position_ceiling < tokens:
        message = (
            f"the expected values need {tokens} positions, the model has {limits.position_ceiling}"
        )
        raise CheckpointError(message)
    return msgspec.structs.replace(
        limits, block_tokens=CHUNK, blocks=blocks, chunk_align=CHUNK, chunk_limit=CHUNK
    )


def _compare_routes(judge: Judge, taps: Taps, expected: Expected) -> tuple[bool, float]:
    if "router_ids" not in expected:
        return True, 0.0
    equal, worst = True, 0.0
    layers = [int(layer) for layer in expected["moe_layers"]]
    if layers != taps.moe_layers:
        judge.failures.append(f"MoE layers {taps.moe_layers}, expected {layers}")
        return False, float("inf")
    for place, layer in enumerate(layers):
        wanted = expected["router_ids"][place], expected["router_weights"][place]
        same, off = judge.routed("router", layer, taps.routes(layer), wanted)
        equal &= same
        worst = max(worst, off)
    return equal, worst


def _compare_selections(judge: Judge, taps: Taps, layers: Array, wanted: Array, name: str) -> bool:
    """Whether every row of every sparse layer attends to the reference's positions."""
    found, equal = taps.selections(), True
    if list(found) != [int(layer) for layer in layers]:
        judge.failures.append(f"{name}: layers {list(found)}, expected {layers.tolist()}")
        return False
    for place, (layer, selected) in enumerate(found.items()):
        if not np.array_equal(selected, wanted[place]):
            equal = False
            if judge.rule == "float32":
                judge.failures.append(f"{name} of layer {layer}: not identical")
    return equal


def _compare_layers(
    judge: Judge, states: list[Array], expected: Expected, *, alone: bool
) -> list[LayerError]:
    if "hidden" not in expected:
        return []
    hidden = expected["hidden"]
    if len(states) != len(hidden):
        message = (
            f"the expected values hold {len(hidden)} hidden states, "
            f"the model has {len(states)}: the embedding's and one of each layer"
        )
        raise CheckpointError(message)
    return [
        judge.layer(i, _as_told(state, hidden[i]), hidden, alone=alone)
        for i, state in enumerate(states)
    ]


def _as_told(state: Array, wanted: Array) -> Array:
    """A residual [T, width] as the reference tells it: its streams one by one, or their mean."""
    if state.size == wanted.size:
        return state.reshape(wanted.shape)
    mean: Array = state.reshape(len(state), -1, wanted.shape[-1]).mean(axis=1)
    return mean


def _compare_drafts(
    judge: Judge, trace: Trace, expected: Expected
) -> tuple[float | None, bool | None]:
    """The largest error of any level's logits, and whether the experts of the first are equal."""
    wanted = _draft_levels(expected)
    if not wanted:
        return None, None
    if len(trace.draft_logits) < len(wanted):
        judge.failures.append(
            f"{len(wanted)} draft levels are expected, the model has {len(trace.draft_logits)}"
        )
        return float("inf"), False
    worst = 0.0
    for level, prefix in enumerate(wanted):
        name = f"draft level {level}" if level else "draft"
        logits = np.concatenate(trace.draft_logits[level])
        worst = max(worst, judge.near(f"{name} logits", logits, expected[f"{prefix}_logits"]))
        if f"{prefix}_hidden" in expected:
            hidden = np.concatenate(trace.draft_hidden[level])
            judge.near(f"{name} hidden", hidden, expected[f"{prefix}_hidden"])
    if "mtp_chain_logits" in expected:
        chain = np.stack(trace.chain_logits)
        worst = max(worst, judge.near("draft chain", chain, expected["mtp_chain_logits"]))
        if not np.array_equal(trace.chain_ids, expected["mtp_chain_ids"]):
            judge.failures.append(f"draft chain: tokens {trace.chain_ids}, not the reference's")
    if "mtp_selected" in expected:
        layer = np.array(list(trace.draft_taps.selections()))
        wanted_rows = expected["mtp_selected"][None]
        _compare_selections(judge, trace.draft_taps, layer, wanted_rows, "draft selection")
    if "mtp_router_ids" not in expected:
        return worst, True
    ids, _ = trace.draft_taps.routes(trace.draft_taps.moe_layers[0])
    equal = bool(np.array_equal(ids, expected["mtp_router_ids"]))
    if not equal and judge.rule == "float32":
        judge.failures.append("draft router ids: not identical")
    return worst, equal


def _draft_levels(expected: Expected) -> list[str]:
    """How the arrays of each draft level begin."""
    names = ["mtp"] if "mtp_logits" in expected else []
    while f"mtp{len(names)}_logits" in expected:
        names.append(f"mtp{len(names)}")
    return names


def _compare_greedy(judge: Judge, trace: Trace, expected: Expected) -> tuple[int, float]:
    """Tokens equal, and the error of the rows they were taken from."""
    if "greedy" not in expected:
        return 0, 0.0
    greedy = expected["greedy"]
    told = "greedy_margin" in expected
    margins = expected["greedy_margin"] if told else np.full(len(greedy), np.inf)
    matched = judge.picks(np.asarray(trace.greedy, np.int64), greedy, margins)
    if "greedy_logits" not in expected:
        return matched, 0.0
    got = np.stack(trace.greedy_logits)
    return matched, judge.near("greedy logits", got, expected["greedy_logits"])


def _float32_gaps(
    checkpoint: Checkpoint, expected: Expected, limits: EngineLimits, threads: int
) -> dict[int, Array]:
    """Per MoE layer, how far float32 holds the last expert chosen from the first left out."""
    engine = ModelEngine(checkpoint, limits, threads)
    trace = Trace(engine, expected["ids"], _answer(expected))
    _, taps = layer_outputs(engine, trace, expected["hidden"])
    return {layer: taps.gaps(layer) for layer in taps.moe_layers}


def _answer(expected: Expected) -> Array:
    return expected["greedy"] if "greedy" in expected else np.zeros(0, np.int32)


class _RankRun(msgspec.Struct, frozen=True):
    """One rank's way through the prompt; `states` [L + 1] and `taps` are what is compared."""

    trace: Trace
    states: list[Array]
    taps: Taps
    backend: str


def _run_rank(
    checkpoint: Checkpoint,
    expected: Expected,
    limits: EngineLimits,
    options: CheckOptions,
    rank: int,
    collective: Collective | None,
) -> _RankRun:
    engine = ModelEngine(
        checkpoint,
        limits,
        options.threads,
        drafts=bool(_draft_levels(expected)),
        backend=options.backend,
        device=device_of(rank, options.backend),
        collective=collective,
        embed_sharding=options.embed_sharding,
    )
    chain = len(expected["mtp_chain_ids"]) if "mtp_chain_ids" in expected else 0
    trace = Trace(engine, expected["ids"], _answer(expected), chain)
    trace.run()
    states, taps = list(trace.taps.hidden_states()), trace.taps
    if _alone(expected, options, states):
        outputs, taps = layer_outputs(engine, trace, expected["hidden"])
        states = [states[0], *outputs]
    return _RankRun(trace, states, taps, engine.backend.name)


def _alone(expected: Expected, options: CheckOptions, states: list[Array]) -> bool:
    """Whether each layer is fed the reference's own input."""
    return options.per_layer and "hidden" in expected and len(states) == len(expected["hidden"])


def _disagreements(runs: list[_RankRun]) -> list[str]:
    """What is not the same, bit for bit, on every rank."""
    first, found = runs[0], []
    for rank, run in enumerate(runs[1:], 1):
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
    0's.

    Raises CheckpointError where the rule is bf16 and `tolerances` states no noise.
    """
    answer = _answer(expected)
    limits = engine_limits(checkpoint.config, len(expected["ids"]) + len(answer))
    runs = run_world(
        options.world, partial(_run_rank, checkpoint, expected, limits, options), options.backend
    )
    trace, states, taps = runs[0].trace, runs[0].states, runs[0].taps
    alone = _alone(expected, options, states)
    gaps = partial(_float32_gaps, checkpoint, expected, limits, options.threads) if alone else None
    judge = make_judge(options.rule, tolerances, gaps)
    judge.failures.extend(_disagreements(runs))
    prompt = np.concatenate(trace.logits)
    logits = judge.logits(prompt, expected["logits"])
    router_equal, router_weights = _compare_routes(judge, taps, expected)
    selected_equal = True
    if "selected" in expected:
        sparse, wanted = expected["sparse_layers"], expected["selected"]
        selected_equal = _compare_selections(judge, taps, sparse, wanted, "selection")
    layers = _compare_layers(judge, states, expected, alone=alone)
    final = 0.0
    if "final_norm" in expected:
        final = judge.near("final norm", np.concatenate(trace.final_norm), expected["final_norm"])
    matched, greedy_logits = _compare_greedy(judge, trace, expected)
    mtp, mtp_router = _compare_drafts(judge, trace, expected)
    mean, agree = _summary(prompt, expected["logits"])
    return ForwardReport(
        family=family_of(checkpoint.config).name,
        variant=tolerances.variant,
        backend=runs[0].backend,
        world=options.world,
        rule=judge.rule,
        logits_max_abs=logits,
        logits_mean_abs=mean,
        argmax_agree=agree,
        layers=tuple(layers),
        greedy_equal=matched,
        greedy_total=len(answer),
        greedy_logits_max_abs=greedy_logits,
        final_norm_max_abs=final,
        router_equal=router_equal,
        router_weights_max_abs=router_weights,
        selected_equal=selected_equal,
        mtp_max_abs=mtp,
        mtp_router_equal=mtp_router,
        ok=not judge.failures,
        flips=tuple(judge.flips),
        failures=tuple(judge.failures),
    )


def _summary(got: Array, wanted: Array) -> tuple[float, float]:
    """mean |error| of logits, and the share of rows with the same best token."""
    if got.shape != wanted.shape:
        return float("inf"), 0.0
    mean = np.nan_to_num(np.abs(got - wanted), nan=np.inf).mean()
    return float(mean), float((got.argmax(1) == wanted.argmax(1)).mean())


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
