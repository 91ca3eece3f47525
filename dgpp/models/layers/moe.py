"""Mixture of experts: a router of scores or of a table, its experts, and shared ones."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.mlp import PROJECTIONS, GatedMlp, MlpNames
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.shard import Split
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Experts, Norm, Routing, Rows, Scores


@dataclass(frozen=True, slots=True)
class MoeShape:
    """`shared` experts act as one MLP of shared · intermediate; 0 for none. A `limit` above 0
    bounds gate and up of every expert, of the shared ones where `limit_shared`. `scores` and
    `weigh_inside` as in `Routing` and `Experts`. A `vocabulary` above 0: a table names the experts
    of each of its tokens, and there is no bias."""

    hidden: int
    experts: int
    top: int
    intermediate: int
    shared: int
    normalise: bool
    scale: float
    eps: float
    limit: float = 0.0
    limit_shared: bool = True
    scores: Scores = Scores.SIGMOID
    weigh_inside: bool = False
    vocabulary: int = 0


@dataclass(frozen=True, slots=True)
class MoeNames:
    """What a layer's tensors are called: its norm, its block, the router's bias and table within
    that, and the projections of an expert."""

    norm: str = "post_attention_layernorm"
    block: str = "mlp"
    bias: str = "gate.e_score_correction_bias"
    table: str = "gate.tid2eid"
    expert: MlpNames = PROJECTIONS


BLOCKS = MoeNames()
DEEPSEEK = MoeNames("ffn_norm", "ffn", "gate.bias", expert=MlpNames("w1", "w3", "w2"))
"""As DeepSeek's own releases name them."""


class RoutedMoe:
    """x += Σ weight · expert(norm(x)) + shared(norm(x)).

    `stored` is the experts' format, `shared` the shared ones' where it is another. In a world every
    rank routes alike and has a share of the inner values of every expert.
    """

    def __init__(
        self,
        source: WeightSource,
        prefix: str,
        layer: int,
        shape: MoeShape,
        stored: Format,
        shared: Format | None = None,
        names: MoeNames = BLOCKS,
    ) -> None:
        self._layer = layer
        name = f"{prefix}.{names.block}"
        weight = source.vector("norms", f"{prefix}.{names.norm}.weight", shape.hidden)
        self._norm = Norm(weight, shape.eps)
        self._routing = _routing(source, name, shape, names)
        self._experts = routed_experts(source, name, shape, stored, names.expert)
        self._shared: GatedMlp | None = None
        if shape.shared:
            self._shared = GatedMlp(
                source,
                "shared experts",
                f"{name}.shared_experts",
                shape.hidden,
                shape.shared * shape.intermediate,
                shared or stored,
                shape.limit if shape.limit_shared else 0.0,
                names.expert,
            )

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        ops.norm(rows, work.x, self._norm, work.normed)
        ops.route(rows, work.normed, self._routing, work.routes)
        if observer is not None:
            observer.routed(self._layer, rows, work.routes)
        fold, x, experts, routes = work.fold, work.normed, self._experts, work.routes
        if self._shared is None:
            ops.moe(rows, x, experts, routes, None, fold.target, add=fold.add)
        else:
            shared, room = self._shared.matrices, (work.act, work.shared)
            ops.moe_shared(rows, x, experts, routes, shared, room, fold.target, add=fold.add)
        fold.finish(rows)


def _routing(source: WeightSource, name: str, shape: MoeShape, names: MoeNames) -> Routing:
    gate = source.matrix("router", [Linear(f"{name}.gate", shape.experts, shape.hidden)])
    bias, table = None, None
    if shape.vocabulary:
        sizes = (shape.vocabulary, shape.top)
        table = source.integers("router", f"{name}.{names.table}", sizes, shape.experts)
    else:
        bias = source.vector("router", f"{name}.{names.bias}", shape.experts, ("F32",))
    return Routing(
        gate,
        bias,
        shape.experts,
        shape.top,
        shape.normalise,
        shape.scale,
        shape.scores,
        table,
    )


def routed_experts(
    source: WeightSource,
    name: str,
    shape: MoeShape,
    stored: Format,
    names: MlpNames = PROJECTIONS,
) -> Experts:
    """This rank's share of the inner values of every expert, each in tensors of its own."""
    hidden, inner = shape.hidden, shape.intermediate
    sides = [
        Linear(f"{name}.experts.{e}.{side}", inner, hidden, stored, split=Split.ROWS)
        for e in range(shape.experts)
        for side in (names.gate, names.up)
    ]
    downs = [
        Linear(f"{name}.experts.{e}.{names.down}", hidden, inner, stored, split=Split.COLUMNS)
        for e in range(shape.experts)
    ]
    own = source.shard.part(inner, "config.json's moe_intermediate_size")
    gate_up, down = source.matrix("experts", sides), source.matrix("experts", downs)
    return Experts(gate_up, down, own, shape.limit, shape.weigh_inside)
