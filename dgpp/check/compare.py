"""Every array of the expected values against what a run gave; none is passed over in silence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dgpp.check.expected import Array, Expected
from dgpp.check.judge import Judge
from dgpp.check.report import BlockErrors, Findings, LayerError
from dgpp.check.trace import Taps, Trace
from dgpp.errors import CheckpointError

ROW_SLACK = 20.0
"""How many times what 1e-6 of noise does to a row's logits they may be off, where cached rows are
rounded: a value on the edge between two codes falls to either side."""


class Run(NamedTuple):
    """What one rank gave; `states` [L + 1] and `taps` are of each layer on its own input, the
    reference's where the layers were fed `alone`."""

    trace: Trace
    states: list[Array]
    taps: Taps
    alone: bool = False


def compare(judge: Judge, run: Run, expected: Expected) -> Findings:
    """Errors and equalities of everything that `expected` holds; what is not near enough goes to
    the judge's failures. Raises CheckpointError for values of another number of layers."""
    trace = run.trace
    prompt, wanted = np.concatenate(trace.logits), _prompt_logits(expected)
    prompt = prompt[len(prompt) - len(wanted) :]
    slack = _slack(expected)
    answer = len(slack) - len(trace.greedy)
    logits = judge.logits(prompt, wanted, slack[: answer + 1][-len(prompt) :])
    router_equal, router_weights = _routes(judge, run.taps, expected)
    selected_equal = _selections(judge, run.taps, expected)
    layers = _layers(judge, run, expected)
    _ends(judge, trace.taps.hidden_states(), expected)
    final = 0.0
    if "final_norm" in expected:
        final = judge.near("final norm", np.concatenate(trace.final_norm), expected["final_norm"])
    matched, greedy_logits = _greedy(judge, trace, expected, slack[answer:])
    mtp, mtp_router = _drafts(judge, trace, expected)
    _tables(judge, trace.taps, expected)
    mean, agree = _summary(prompt, wanted)
    return Findings(
        logits_max_abs=logits,
        logits_mean_abs=mean,
        argmax_agree=agree,
        layers=tuple(layers),
        greedy_equal=matched,
        greedy_total=len(trace.greedy),
        greedy_logits_max_abs=greedy_logits,
        final_norm_max_abs=final,
        router_equal=router_equal,
        router_weights_max_abs=router_weights,
        selected_equal=selected_equal,
        mtp_max_abs=mtp,
        mtp_router_equal=mtp_router,
        blocks=_blocks(judge, trace, expected),
        not_compared=left_out(judge, expected),
    )


def _prompt_logits(expected: Expected) -> Array:
    """[rows, V] of the prompt's last rows: all of them, or the last alone."""
    return expected["logits"] if "logits" in expected else expected["logits_last"][None]


def _tables(judge: Judge, taps: Taps, expected: Expected) -> None:
    """Rows of tables that the tokens' n-grams name, and what finds them."""
    if "ngram_rows" in expected:
        found = taps.ngrams()
        if len(found) != 1 or not np.array_equal(found[0], expected["ngram_rows"]):
            judge.failures.append("ngram_rows: not identical")
    if "engram_rows" not in expected:
        return
    hashes = taps.hashes
    named = {
        "engram_rows": taps.ngrams(),
        "engram_primes": [how.primes for how in hashes],
        "engram_multipliers": [how.multipliers for how in hashes],
        "token_map": hashes[0].classes if hashes else [],
    }
    for name, got in named.items():
        wanted = expected[name].astype(np.int64)
        values = np.asarray(got, np.int64)
        if name == "engram_rows":
            values = np.moveaxis(values, 0, 1)
        if values.size != wanted.size or not np.array_equal(values.reshape(wanted.shape), wanted):
            judge.failures.append(f"{name}: not identical")


def _slack(expected: Expected) -> Array:
    """What the logits of each row may be off besides: rows of the prompt, then those after its last
    that gave the answer's further tokens."""
    if "row_tol" in expected:
        return ROW_SLACK * expected["row_tol"].astype(np.float64)
    answer = len(expected["greedy"]) if "greedy" in expected else 1
    return np.zeros(len(expected["ids"]) + answer - 1)


def left_out(judge: Judge, expected: Expected) -> dict[str, str]:
    """The arrays that nothing was compared with, and why; one without a reason is a failure."""
    left = expected.unread()
    judge.failures.extend(
        f"{name}: holds values that nothing was compared with"
        for name, reason in left.items()
        if not reason
    )
    return {name: reason for name, reason in left.items() if reason}


def _routes(judge: Judge, taps: Taps, expected: Expected) -> tuple[bool, float]:
    if "router_ids" not in expected:
        return True, 0.0
    layers = [int(layer) for layer in expected.either("moe_layers", "router_layers")]
    if layers != taps.moe_layers:
        judge.failures.append(f"MoE layers {taps.moe_layers}, expected {layers}")
        return False, float("inf")
    equal, worst = True, 0.0
    for place, layer in enumerate(layers):
        found = taps.routes(layer)
        told = "router_weights" in expected
        weights = expected["router_weights"][place] if told else found[1]
        wanted = expected["router_ids"][place], weights
        same, off = judge.routed("router", layer, found, wanted)
        equal &= same
        worst = max(worst, off)
    return equal, worst


def _selections(judge: Judge, taps: Taps, expected: Expected) -> bool:
    if "selected" not in expected:
        return True
    layers = expected.either("sparse_layers", "selected_layers")
    own = set(expected.either("indexer_layers", "sparse_layers", "selected_layers").tolist())
    if not _selected(judge, taps, layers, expected["selected"], "selection"):
        return False
    found = taps.selections()
    before = None
    for layer, selected in found.items():
        before = layer if layer in own else before
        if before is None or not np.array_equal(selected, found[before]):
            judge.failures.append(f"selection of layer {layer}: not that of layer {before}")
            return False
    return True


def _selected(judge: Judge, taps: Taps, layers: Array, wanted: Array, name: str) -> bool:
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


def _layers(judge: Judge, run: Run, expected: Expected) -> list[LayerError]:
    if "hidden" not in expected:
        return []
    hidden = expected["hidden"]
    if len(run.states) != len(hidden):
        message = (
            f"the expected values hold {len(hidden)} hidden states, "
            f"the model has {len(run.states)}: the embedding's and one of each layer"
        )
        raise CheckpointError(message)
    return [
        judge.layer(i, _as_told(state, hidden[i]), hidden, alone=run.alone)
        for i, state in enumerate(run.states)
    ]


def _ends(judge: Judge, states: list[Array], expected: Expected) -> None:
    """The residual after the embedding and after the last layer, which are told in float32 too."""
    for name, state in (("hidden_first", states[0]), ("hidden_last", states[-1])):
        if name in expected:
            judge.state(name.replace("_", " "), _as_told(state, expected[name]), expected[name])


def _as_told(state: Array, wanted: Array) -> Array:
    """A residual [T, width] as the reference tells it: its streams one by one, or their mean."""
    if state.size == wanted.size:
        return state.reshape(wanted.shape)
    mean: Array = state.reshape(len(state), -1, wanted.shape[-1]).mean(axis=1)
    return mean


def _drafts(judge: Judge, trace: Trace, expected: Expected) -> tuple[float | None, bool | None]:
    """The largest error of any level's logits, and whether the experts of the first are equal."""
    wanted = draft_levels(expected)
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
        _selected(judge, trace.draft_taps, layer, wanted_rows, "draft selection")
    if "mtp_router_ids" not in expected:
        return worst, True
    ids, _ = trace.draft_taps.routes(trace.draft_taps.moe_layers[0])
    equal = bool(np.array_equal(ids, expected["mtp_router_ids"]))
    if not equal and judge.rule == "float32":
        judge.failures.append("draft router ids: not identical")
    return worst, equal


def _blocks(judge: Judge, trace: Trace, expected: Expected) -> BlockErrors | None:
    """Blocks drafted at once, behind each anchor."""
    if "dspark_logits" not in expected:
        return None
    wanted = expected["dspark_ids"]
    if len(trace.blocks) != len(wanted):
        judge.failures.append(f"{len(wanted)} blocks are expected, {len(trace.blocks)} were made")
        return BlockErrors(float("inf"), float("inf"), 0, wanted.size)
    tokens = np.stack([block.tokens for block in trace.blocks])
    logits = np.stack([block.logits for block in trace.blocks])
    sure = np.stack([block.confidence for block in trace.blocks])
    equal = int(np.sum(tokens == wanted))
    if equal != wanted.size:
        judge.failures.append(f"blocks: {equal} of {wanted.size} tokens equal")
    return BlockErrors(
        judge.near("block logits", logits, expected["dspark_logits"]),
        judge.near("block confidence", sure, expected["dspark_conf"]),
        equal,
        wanted.size,
    )


def draft_levels(expected: Expected) -> list[str]:
    """How the arrays of each draft level begin."""
    names = ["mtp"] if "mtp_logits" in expected else []
    while f"mtp{len(names)}_logits" in expected:
        names.append(f"mtp{len(names)}")
    return names


def _greedy(judge: Judge, trace: Trace, expected: Expected, slack: Array) -> tuple[int, float]:
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
    return matched, judge.near("greedy logits", got, expected["greedy_logits"], slack)


def _summary(got: Array, wanted: Array) -> tuple[float, float]:
    """mean |error| of logits, and the share of rows with the same best token."""
    if got.shape != wanted.shape:
        return float("inf"), 0.0
    mean = np.nan_to_num(np.abs(got - wanted), nan=np.inf).mean()
    return float(mean), float((got.argmax(1) == wanted.argmax(1)).mean())
