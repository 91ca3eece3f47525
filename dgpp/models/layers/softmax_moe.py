"""Mixture of experts with a softmax router and one shared expert behind a gate of its own."""

from __future__ import annotations

from dgpp.checkpoint.formats import Format, bf16_stack
from dgpp.models.layers.extended import extended
from dgpp.models.layers.mlp import GatedMlp
from dgpp.models.layers.moe import MoeShape, routed_experts
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.shard import Split
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Backend, Experts, Routing, Rows, Scores


def stacked_experts(source: WeightSource, name: str, shape: MoeShape) -> Experts:
    """As `routed_experts`, of one bf16 tensor with all [gate; up] and one with what is down."""
    number, inner = shape.experts, shape.intermediate
    sides = Linear(
        f"{name}.experts.gate_up_proj",
        2 * number * inner,
        shape.hidden,
        bf16_stack(number),
        take=tuple((part * inner, inner) for part in range(2 * number)),
        split=Split.ROWS,
    )
    down = Linear(
        f"{name}.experts.down_proj",
        number * shape.hidden,
        inner,
        bf16_stack(number),
        split=Split.COLUMNS,
    )
    own = source.shard.part(inner, "config.json's moe_intermediate_size")
    gate_up, downs = source.matrix("experts", [sides]), source.matrix("experts", [down])
    return Experts(gate_up, downs, own, shape.limit)


class SoftmaxMoe:
    """x += Σ weight · expert(x) + σ(gate x) · shared(x), without a norm of its own.

    `stored` is the experts' format, None for all in two tensors; `inner` are the shared expert's
    values. In a world every rank routes alike and has a share of every expert's inner values.
    """

    def __init__(
        self,
        source: WeightSource,
        name: str,
        layer: int,
        shape: MoeShape,
        stored: Format | None,
        inner: int,
        shared: Format,
    ) -> None:
        self._layer = layer
        hidden = shape.hidden
        gate = source.matrix("router", [Linear(f"{name}.gate", shape.experts, hidden)])
        self._routing = Routing(
            gate, None, shape.experts, shape.top, shape.normalise, shape.scale, Scores.SOFTMAX
        )
        if stored is None:
            self._experts = stacked_experts(source, name, shape)
        else:
            self._experts = routed_experts(source, name, shape, stored)
        item = "shared experts"
        self._shared = GatedMlp(source, item, f"{name}.shared_expert", hidden, inner, shared)
        self._gate = source.matrix("router", [Linear(f"{name}.shared_expert_gate", 1, hidden)])

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        more, x, shared = extended(ops), work.x, work.shared
        more.route(rows, x, self._routing, work.routes)
        if observer is not None:
            observer.routed(self._layer, rows, work.routes)
        self._shared.forward(ops, rows, work, x, shared, norm=None, add=False)
        more.linear(rows, x, self._gate, work.extra["shared gate"])
        more.gate_whole(rows, shared, work.extra["shared gate"])
        fold = work.fold
        more.moe(rows, x, self._experts, work.routes, shared, fold.target, add=fold.add)
        fold.finish(rows)
