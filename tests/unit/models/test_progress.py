"""What is said while a model's weights come into memory."""

from __future__ import annotations

import logging
from itertools import count

import pytest
from model_fixtures import FIXTURES

from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.json_file import read_json
from dgpp.engine.loading import DummyModel, Loading
from dgpp.models import progress
from dgpp.models.forms import AS_STORED
from dgpp.models.plan import WEIGHTS, MemorySettings, plan_memory
from dgpp.models.progress import EVERY_S, FollowedWeights
from dgpp.models.registry import family_of
from dgpp.models.shard import ALONE
from dgpp.models.sources import PlannedWeights
from dgpp.models.tables import RESIDENT

MODELS = (
    "glm-4.7-bf16",
    "glm-4.7-nvfp4",
    # Vectors side by side, depthwise kernels, tables and whole numbers.
    "qwen3.8-flash-next-tiny",
    "deepseek-v4.1-flash-tiny",
    "deepseek-v4-flash-tiny",
)
CALLS = ("matrix", "values", "depthwise", "joined", "table", "integers")


def config_of(name):
    return read_json(FIXTURES / name / "config.json")


class Asked(PlannedWeights):
    """A source that notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __getattribute__(self, name: str):
        if name in CALLS:
            self.calls.append(name)
        return super().__getattribute__(name)


def build(config, source):
    family = family_of(config)
    return family.build(family.settle(config), source, drafts=True)


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_is_asked_for_once_and_all_of_them_are_the_plan(name, caplog):
    config = config_of(name)
    plain, followed = Asked(), Asked()
    build(config, plain)
    total = sum(plain.items.values())
    seconds = count(0, EVERY_S)
    with caplog.at_level(logging.INFO, "dgpp.engine"):
        build(config, FollowedWeights(followed, AS_STORED, total, "made", lambda: next(seconds)))
    assert followed.calls == plain.calls
    assert followed.items == plain.items
    # A line at each look, as each is late enough; the last tells of everything.
    assert len(caplog.messages) == len(plain.calls)
    size = f"{total / 2**30:.1f}"
    assert caplog.messages[-1] == f"made: {size} of {size} GiB in {5 * len(plain.calls)} s"


def test_lines_are_as_far_apart_as_they_should_be(caplog):
    seconds = count(0)
    source = FollowedWeights(PlannedWeights(), AS_STORED, 3 << 30, "made", lambda: next(seconds))
    with caplog.at_level(logging.INFO, "dgpp.engine"):
        for _ in range(12):
            source.vector("norms", "x", 1 << 26)
    assert caplog.messages == [
        "made: 1.2 of 3.0 GiB in 5 s",
        "made: 2.5 of 3.0 GiB in 10 s",
    ]


def test_the_models_ask_for_everything_that_a_source_gives():
    asked = set()
    for name in MODELS:
        source = Asked()
        build(config_of(name), source)
        asked.update(source.calls)
    assert asked == set(CALLS)


@pytest.mark.parametrize(
    ("model", "doing"),
    [
        (DummyModel(config_of("glm-4.7-bf16")), "random weights made"),
        (Checkpoint(FIXTURES / "glm-4.7-bf16"), "weights loaded"),
    ],
)
def test_what_comes_into_memory_is_told_against_the_memory_plan(caplog, monkeypatch, model, doing):
    pytest.importorskip("numba")
    from kernels_numba.cpu.backend import CpuBackend

    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setattr(progress, "GIB", 1)
    load = Loading(model, CpuBackend(8, 1), ALONE, AS_STORED, RESIDENT, drafts=False)
    with caplog.at_level(logging.INFO, "dgpp.engine"):
        load.run(None)
    plan = plan_memory(model.config, MemorySettings())
    size = sum(item.bytes for item in plan.items if item.name.startswith(WEIGHTS))
    told = [line.partition(" in ")[0] for line in caplog.messages]
    assert told[-1] == f"{doing}: {size:.1f} of {size:.1f} GiB"
    assert {line.partition(":")[0] for line in told} == {doing}
