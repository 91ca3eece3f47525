"""What a check found."""

from __future__ import annotations

import msgspec


class LayerError(msgspec.Struct, frozen=True):
    """Error after layer `layer` (−1: the embedding); `of_change` is the largest over the largest
    change that the layer makes, where that is judged."""

    layer: int
    max_abs: float
    ok: bool
    of_change: float | None = None


class Flip(msgspec.Struct, frozen=True):
    """A row whose experts are not the reference's, and how far float32 holds them apart."""

    layer: int
    row: int
    gap: float
    allowed: bool


class BlockErrors(msgspec.Struct, frozen=True):
    """Of blocks drafted at once: errors of logits and of confidences, tokens as the reference's."""

    logits_max_abs: float
    confidence_max_abs: float
    equal: int
    total: int


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Errors are largest absolute differences.

    `mtp_max_abs` is None without values of draft levels, `blocks` without those of blocks;
    `selected_equal` is true without sparse layers. `argmax_agree` is the share of prompt rows with
    the reference's best token. `not_compared` names the arrays of the expected values that were
    left out, and why.
    """

    logits_max_abs: float
    logits_mean_abs: float
    argmax_agree: float
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
    blocks: BlockErrors | None
    not_compared: dict[str, str]


class ForwardReport(Findings, frozen=True, kw_only=True):
    """`rule` is float32 or bf16; `failures` says in words what is out of tolerance. `flips` are
    told where each layer is fed the reference's own input. `rounded` is the same with cached rows
    rounded as the release rounds them, `bounded` with the end of the prompt alone in later layers,
    where there are values of that; what fails there fails here too."""

    family: str
    variant: str
    backend: str
    world: int
    rule: str
    ok: bool
    flips: tuple[Flip, ...] = ()
    failures: tuple[str, ...] = ()
    rounded: ForwardReport | None = None
    bounded: ForwardReport | None = None
