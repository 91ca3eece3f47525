"""Mixture of experts with a biased sigmoid router and shared experts."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.mlp import GatedMlp
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.shard import Split
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Experts, Norm, Routing, Rows


@dataclass(frozen=True, slots=True)
class MoeShape:
    """`shared` experts act as one MLP of shared · intermediate; 0 for none. A `limit` above 0
    bounds gate and up of every expert."""

    hidden: int
    experts: int
    top: int
    intermediate: int
    shared: int
    normalise: bool
    scale: float
    eps: float
    limit: float = 0.0


class SigmoidMoe:
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
    ) -> None:
        self._layer = layer
        name = f"{prefix}.mlp"
        weight = source.vector("norms", f"{prefix}.post_attention_layernorm.weight", shape.hidden)
        self._norm = Norm(weight, shape.eps)
        gate = source.matrix("router", [Linear(f"{name}.gate", shape.experts, shape.hidden)])
        bias = source.vector(
            "router", f"{name}.gate.e_score_correction_bias", shape.experts, ("F32",)
        )
        self._routing = Routing(gate, bias, shape.experts, shape.top, shape.normalise, shape.scale)
        hidden, inner = shape.hidden, shape.intermediate
        sides = [
            Linear(f"{name}.experts.{e}.{side}_proj", inner, hidden, stored, split=Split.ROWS)
            for e in range(shape.experts)
            for side in ("gate", "up")
        ]
        downs = [
            Linear(f"{name}.experts.{e}.down_proj", hidden, inner, stored, split=Split.COLUMNS)
            for e in range(shape.experts)
        ]
        own = source.shard.part(inner, "config.json's moe_intermediate_size")
        self._experts = Experts(
            source.matrix("experts", sides), source.matrix("experts", downs), own, shape.limit
        )
        self._shared: GatedMlp | None = None
        if shape.shared:
            self._shared = GatedMlp(
                source,
                "shared experts",
                f"{name}.shared_experts",
                hidden,
                shape.shared * inner,
                shared or stored,
                shape.limit,
            )

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        ops.norm(rows, work.x, self._norm, work.normed)
        ops.route(rows, work.normed, self._routing, work.routes)
        if observer is not None:
            observer.routed(self._layer, rows, work.routes)
        shared = None
        if self._shared is not None:
            shared = work.shared
            self._shared.forward(ops, rows, work, work.normed, shared, norm=None, add=False)
        fold = work.fold
        ops.moe(rows, work.normed, self._experts, work.routes, shared, fold.target, add=fold.add)
        fold.finish(rows)
