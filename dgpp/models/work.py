"""What one step of a model must read and multiply, from its sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class StepWork(msgspec.Struct, frozen=True):
    """Of the target model, without draft layers, on one rank.

    fixed_bytes        weights that every decode step reads: all but the embedding table (unless it
                       is the head too), n-gram tables and the routed experts
    expert_bytes       all routed experts
    experts, top       routed experts of a layer and how many a token takes; 0 without any
    linear_parameters  matrix parameters that a prompt token passes: `top` of its experts, without
                       embedding, head and attention scores
    """

    fixed_bytes: int
    expert_bytes: int
    experts: int
    top: int
    linear_parameters: float

    def read_bytes(self, distinct: float) -> float:
        """Weights read by a decode step whose MoE layers pick `distinct` experts on average."""
        share = distinct / self.experts if self.experts else 0.0
        return self.fixed_bytes + self.expert_bytes * share

    def expected_experts(self, rows: int) -> float:
        """Distinct experts that `rows` tokens pick in a layer where every choice is as likely."""
        if not self.experts:
            return 0.0
        return float(self.experts * (1.0 - (1.0 - self.top / self.experts) ** rows))


def step_work(
    sizes: Mapping[str, int], parameters: Mapping[str, int], config: Any, table: float
) -> StepWork:
    """From bytes and matrix parameters by item of the plan, and the family's configuration;
    `table` is the share of the embedding that is read where it is the head too."""
    experts = config.n_routed_experts if "experts" in sizes else 0
    top = config.num_experts_per_tok if experts else 0
    unread = {"experts", "embedding", "n-gram table"}
    head = 0 if "head" in sizes else int(sizes.get("embedding", 0) * table)
    linear = sum(
        n for item, n in parameters.items() if item not in ("embedding", "head", "experts")
    )
    share = top / experts if experts else 0.0
    return StepWork(
        fixed_bytes=sum(size for item, size in sizes.items() if item not in unread) + head,
        expert_bytes=sizes.get("experts", 0),
        experts=experts,
        top=top,
        linear_parameters=linear + parameters.get("experts", 0) * share,
    )
