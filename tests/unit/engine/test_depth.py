"""How many plans go out ahead of a verdict, and what that takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dgpp.engine.depth import AUTO, pipeline_depth
from dgpp.errors import ConfigError
from dgpp.models.plan import GRAPH_LAYER_BYTES, MemorySettings, plan_memory
from kernels_numba.gpu.graph import reaches

CONFIG = json.loads((Path(__file__).parents[2] / "fixtures/glm-4.7-bf16/config.json").read_text())


@pytest.mark.parametrize(
    ("wanted", "backend", "more", "depth"),
    [
        (AUTO, "cuda", {}, 1),
        (AUTO, "cuda", {"drafts": 1}, 0),
        (AUTO, "cpu", {}, 0),
        (AUTO, "scripted", {}, 0),
        (0, "cuda", {}, 0),
        (1, "cuda", {}, 1),
        (1, "scripted", {}, 1),
    ],
)
def test_the_depth_of_an_engine(wanted, backend, more, depth):
    assert pipeline_depth(wanted, backend, **more) == depth


@pytest.mark.parametrize(
    ("backend", "more", "words"),
    [
        ("cpu", {}, "engine.backend cuda or scripted"),
        ("scripted", {"drafts": 3}, "steps of one token"),
    ],
)
def test_a_depth_that_cannot_be_had_is_refused(backend, more, words):
    with pytest.raises(ConfigError, match=f"engine.pipeline_depth: 1 needs {words}"):
        pipeline_depth(1, backend, **more)


def test_steps_are_recorded_up_to_each_reach():
    assert reaches(100) == [100]
    assert reaches(1024) == [1024]
    assert reaches(1025) == [1024, 1025]
    assert reaches(202752) == [1024, 4096, 16384, 65536, 202752]


def test_the_plan_counts_what_depth_and_graphs_take():
    def items(**settings):
        plan = plan_memory(CONFIG, MemorySettings(backend="cuda", slots=8, **settings))
        assert plan.limits.depth == settings.get("depth", 0)
        return {item.name: item.bytes for item in plan.items}

    plain, ahead = items(graphs=False), items(depth=1)
    assert "decode graphs" not in plain
    # Two sets of logits, 8 numbers of rows, positions up to the fixture's 4096 in two reaches, 5
    # layers.
    assert ahead["decode graphs"] == 2 * 8 * 2 * 5 * GRAPH_LAYER_BYTES
    assert ahead["logits"] == 2 * plain["logits"]
    assert "decode graphs" not in {
        item.name for item in plan_memory(CONFIG, MemorySettings()).items
    }
