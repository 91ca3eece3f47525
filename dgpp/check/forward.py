"""Compares a checkpoint's forward pass, driven as it is served, with expected values."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from dgpp.check.expected import Array, Expected, Tolerance, Tolerances
from dgpp.check.trace import Trace, layer_outputs
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.base import EngineLimits
from dgpp.engine.model_engine import ModelEngine
from dgpp.errors import CheckpointError
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.registry import family_of

CHUNK = 16
"""Rows per prefill chunk and cache block of a check: small, so that fixtures cross borders."""
SLOTS = 2


class LayerError(msgspec.Struct, frozen=True):
    """Error after layer `layer` (−1: the embedding)."""

    layer: int
    max_abs: float
    ok: bool


class ForwardReport(msgspec.Struct, frozen=True):
    """Errors are largest absolute differences; `failures` says in words what is out of tolerance.

    `mtp_max_abs` is None without draft values; `selected_equal` is true without sparse layers.
    """

    family: str
    variant: str
    backend: str
    world: int
    logits_max_abs: float
    layers: tuple[LayerError, ...]
    greedy_equal: int
    greedy_total: int
    greedy_logits_max_abs: float
    final_norm_max_abs: float
    router_equal: bool
    router_weights_max_abs: float
    selected_equal: bool
    mtp_max_abs: float | None
    mtp_router_equal: bool | None
    ok: bool
    failures: tuple[str, ...] = ()


def _max_abs(got: Array, reference: Array) -> float:
    difference = np.abs(got.astype(np.float64) - reference.astype(np.float64))
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


class _Verdict:
    """Gathers comparisons; a shape that differs fails like a value."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def near(self, name: str, got: Array, reference: Array, tolerance: Tolerance) -> float:
        if got.shape != reference.shape:
            self.failures.append(f"{name}: shape {got.shape}, expected {reference.shape}")
            return float("inf")
        if tolerance.excess(got, reference) > 1.0:
            self.failures.append(f"{name}: off by up to {_max_abs(got, reference):.3g}")
        return _max_abs(got, reference)

    def same(self, name: str, got: Array, reference: Array) -> bool:
        equal = got.shape == reference.shape and bool(np.array_equal(got, reference))
        if not equal:
            self.failures.append(f"{name}: not identical")
        return equal


def _limits(config: dict[str, object], tokens: int) -> EngineLimits:
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


def _compare_layers(
    verdict: _Verdict, states: list[Array], reference: Array, tolerance: Tolerance
) -> list[LayerError]:
    errors = []
    for index, (got, wanted) in enumerate(zip(states, reference, strict=True)):
        before = len(verdict.failures)
        worst = verdict.near(f"hidden after layer {index - 1}", got, wanted, tolerance)
        errors.append(LayerError(index - 1, worst, len(verdict.failures) == before))
    return errors


def _compare_routes(
    verdict: _Verdict, trace: Trace, expected: Expected, tolerance: Tolerance
) -> tuple[bool, float]:
    if "router_ids" not in expected:
        return True, 0.0
    equal, worst = True, 0.0
    layers = [int(layer) for layer in expected["moe_layers"]]
    if layers != trace.taps.moe_layers:
        verdict.failures.append(f"MoE layers {trace.taps.moe_layers}, expected {layers}")
        return False, float("inf")
    for place, layer in enumerate(layers):
        ids, weights = trace.taps.routes(layer)
        equal &= verdict.same(f"router ids of layer {layer}", ids, expected["router_ids"][place])
        name = f"router weights of layer {layer}"
        reference = expected["router_weights"][place]
        worst = max(worst, verdict.near(name, weights, reference, tolerance))
    return equal, worst


def _compare_drafts(
    verdict: _Verdict, trace: Trace, expected: Expected, tolerance: Tolerance
) -> tuple[float | None, bool | None]:
    if "mtp_logits" not in expected:
        return None, None
    if not trace.draft_logits:
        verdict.failures.append("draft values are expected, the model has no draft layer")
        return float("inf"), False
    worst = verdict.near(
        "draft logits", np.concatenate(trace.draft_logits), expected["mtp_logits"], tolerance
    )
    hidden = np.concatenate(trace.draft_hidden)
    verdict.near("draft hidden", hidden, expected["mtp_hidden"], tolerance)
    equal = True
    if "mtp_router_ids" in expected:
        ids, _ = trace.draft_taps.routes(trace.draft_taps.moe_layers[0])
        equal = verdict.same("draft router ids", ids, expected["mtp_router_ids"])
    return worst, equal


def _compare_greedy(
    verdict: _Verdict, trace: Trace, expected: Expected, greedy: Array, tolerance: Tolerance
) -> tuple[int, float]:
    """Tokens equal, and the error of the rows they were taken from."""
    matched = int(np.sum(np.asarray(trace.greedy, np.int64) == greedy))
    if matched != len(greedy):
        verdict.failures.append(f"greedy: {matched} of {len(greedy)} tokens equal")
    if "greedy_logits" not in expected:
        return matched, 0.0
    got = np.stack(trace.greedy_logits)
    return matched, verdict.near("greedy logits", got, expected["greedy_logits"], tolerance)


def check_checkpoint(
    checkpoint: Checkpoint,
    expected: Expected,
    tolerances: Tolerances,
    *,
    threads: int = 2,
    per_layer: bool = False,
    backend: str = "cpu",
) -> ForwardReport:
    """Run the prompt of `expected` through an engine in chunks, then decode greedily, and compare.

    `per_layer` feeds each layer the reference's own input, so that errors do not add up.
    """
    greedy = expected["greedy"] if "greedy" in expected else np.zeros(0, np.int32)
    tokens = len(expected["ids"]) + len(greedy)
    limits = _limits(checkpoint.config, tokens)
    drafts = "mtp_logits" in expected
    engine = ModelEngine(checkpoint, limits, threads, drafts=drafts, backend=backend)
    trace = Trace(engine, expected["ids"], len(greedy))
    trace.run()
    verdict = _Verdict()
    near = tolerances.logits
    logits = verdict.near("logits", np.concatenate(trace.logits), expected["logits"], near)
    layers: list[LayerError] = []
    if "hidden" in expected:
        states: list[Array] = list(trace.taps.hidden_states())
        if len(states) != len(expected["hidden"]):
            message = (
                f"the expected values hold {len(expected['hidden'])} hidden states, "
                f"the model has {len(states)}: the embedding's and one of each layer"
            )
            raise CheckpointError(message)
        if per_layer:
            states = [states[0], *layer_outputs(engine, trace, expected["hidden"])]
        layers = _compare_layers(verdict, states, expected["hidden"], tolerances.hidden)
    final = 0.0
    if "final_norm" in expected:
        got = np.concatenate(trace.final_norm)
        final = verdict.near("final norm", got, expected["final_norm"], near)
    matched, greedy_logits = _compare_greedy(verdict, trace, expected, greedy, near)
    router_equal, router_weights = _compare_routes(verdict, trace, expected, near)
    mtp, mtp_router = _compare_drafts(verdict, trace, expected, near)
    return ForwardReport(
        family=family_of(checkpoint.config).name,
        variant=tolerances.variant,
        backend=engine.backend.name,
        world=1,
        logits_max_abs=logits,
        layers=tuple(layers),
        greedy_equal=matched,
        greedy_total=len(greedy),
        greedy_logits_max_abs=greedy_logits,
        final_norm_max_abs=final,
        router_equal=router_equal,
        router_weights_max_abs=router_weights,
        selected_equal=True,
        mtp_max_abs=mtp,
        mtp_router_equal=mtp_router,
        ok=not verdict.failures,
        failures=tuple(verdict.failures),
    )


def open_and_check(
    directory: Path,
    expected: Path,
    tolerances: Tolerances,
    *,
    threads: int,
    per_layer: bool,
    backend: str = "cpu",
) -> ForwardReport:
    """`check_checkpoint` from paths. Raises CheckpointError for what cannot be opened."""
    return check_checkpoint(
        Checkpoint(directory),
        Expected(expected),
        tolerances,
        threads=threads,
        per_layer=per_layer,
        backend=backend,
    )
