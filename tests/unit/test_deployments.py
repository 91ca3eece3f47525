"""The deployments of deploy/: what each says, that its draft exists, that it fits its nodes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import structs

from actors.planning import LATER, NODES, elsewhere
from dgpp.checkpoint.facts import stand_in
from dgpp.cli.main import main
from dgpp.config.resolve import load
from dgpp.config.settings import Settings
from dgpp.errors import CheckpointError
from dgpp.models.plan import MemoryPlan, require_fit
from dgpp.models.registry import FAMILIES

DEPLOY = Path(__file__).parents[2] / "deploy"
GIB = 1 << 30
FLASH, HYBRID = "unsloth/GLM-5.3-Flash-FP8", "HawkBearPig/GLM-5.3-Flash-NVFP4-FP8"
NEXT, NEXT_FP4 = "Qwen/Qwen3.8-Flash-Next-FP8", "nvidia/Qwen3.8-Flash-Next-NVFP4"
RADIX = "RadixArk/Qwen3.8-Flash-Next-NVFP4"
ROUND = "Saren/Qwen3.8-Flash-Next-W4A16-AutoRound-hybrid-MTP_int4RTN"
V4, V41 = "deepseek-ai/DeepSeek-V4-Flash-0731", "deepseek-ai/DeepSeek-V4.1-Flash"
MIMO = "XiaomiMiMo/MiMo-V2.6-Flash-RL"
DENSE, DENSE_FP4 = "Qwen/Qwen3.8-27B-FP8", "unsloth/Qwen3.8-27B-NVFP4"
DFLASH = "z-lab/Qwen3.8-27B-DFlash2"


class Row(NamedTuple):
    """A line of the reference system's table: requests at once, tokens of context for all of them,
    the draft (levels of the model's own, or a drafter), GiB for prefixes."""

    model: str
    slots: int
    tokens: int
    draft: int | str
    prefixes: float


TABLE = {
    "glm-5.3-flash-nvfp4-fp8-w4": Row(HYBRID, 4, 786_432, 1, 22),
    "glm-5.3-flash-nvfp4-fp8-w2": Row(HYBRID, 4, 163_840, 1, 4.5),
    "glm-5.3-flash-fp8-w4": Row(FLASH, 4, 393_216, 1, 8),
    "glm-4.7-nvfp4-w4": Row("nvidia/GLM-4.7-NVFP4", 4, 262_144, 1, 1.5),
    "glm-5.3-int4-int8-w4": Row("HawkBearPig/GLM-5.3-Int4-Int8Mix-RTN-g64", 8, 122_880, 1, 1),
    "qwen3.8-flash-next-fp8-w2": Row(NEXT, 4, 262_144, 1, 6),
    "qwen3.8-flash-next-fp8-w4": Row(NEXT, 4, 262_144, 1, 50),
    "qwen3.8-flash-next-nvfp4-w1": Row(NEXT_FP4, 4, 262_144, 1, 3),
    "qwen3.8-flash-next-nvfp4-w2": Row(NEXT_FP4, 4, 262_144, 1, 58),
    "qwen3.8-flash-next-nvfp4-yarn512k-w2": Row(NEXT_FP4, 2, 565_248, 1, 40),
    "qwen3.8-flash-next-nvfp4-radixark-w1": Row(RADIX, 4, 262_144, 2, 3),
    "qwen3.8-flash-next-nvfp4-radixark-w2": Row(RADIX, 4, 524_288, 4, 32),
    "qwen3.8-flash-next-autoround-int4-w1": Row(ROUND, 4, 262_144, 3, 3),
    "deepseek-v4.1-flash-mxfp4-fp8-w4": Row(V41, 6, 131_072, 4, 14),
    "deepseek-v4-flash-mxfp4-fp8-w4": Row(V4, 6, 1_048_576, 5, 14),
    "deepseek-v4-flash-mxfp4-fp8-w2": Row(V4, 4, 1_048_576, 5, 8),
    "mimo-v2.6-flash-mxfp4-fp8-w4": Row(MIMO, 4, 131_072, 1, 1.5),
    "mimo-v2.6-flash-mxfp4-fp8-w2": Row(MIMO, 4, 262_144, 1, 1.5),
    "qwen3.8-27b-fp8-w1": Row(DENSE, 8, 262_144, DFLASH, 1.5),
    "qwen3.8-27b-fp8-w2": Row(DENSE, 8, 262_144, DFLASH, 1.5),
    "qwen3.8-27b-fp8-w4": Row(DENSE, 8, 262_144, DFLASH, 1.5),
    "qwen3.8-27b-nvfp4-w1": Row(DENSE_FP4, 8, 262_144, DFLASH, 1.5),
    "qwen3.8-27b-nvfp4-w2": Row(DENSE_FP4, 8, 262_144, DFLASH, 1.5),
    "qwen3.8-27b-nvfp4-w4": Row(DENSE_FP4, 8, 262_144, DFLASH, 1.5),
}
# What the reference system states of a rank, in GiB: its weights, as stored those of which bf12 is
# much, or all of it.
WEIGHTS = {
    "glm-4.7-nvfp4-w4": 57,
    "glm-5.3-int4-int8-w4": 99,
    "mimo-v2.6-flash-mxfp4-fp8-w4": 44,
    "deepseek-v4.1-flash-mxfp4-fp8-w4": 73,
    "qwen3.8-flash-next-fp8-w2": 87.3,
    "qwen3.8-flash-next-fp8-w4": 45,
}
AS_STORED = {"glm-4.7-nvfp4-w4"}
ALL = {"deepseek-v4-flash-mxfp4-fp8-w4": 63}
DRAFT_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")

deployment = pytest.mark.parametrize("name", TABLE)


@cache
def settings_of(name: str) -> Settings:
    return load(DEPLOY / f"{name}.json", environ={})


def facts_of(model: str) -> dict[str, object]:
    facts = stand_in(model, DEPLOY)
    assert facts is not None, f"no facts of {model}"
    config = json.loads(facts.read_text())
    return {**config, **config.get("text_config", {}), "model_type": config["model_type"]}


@cache
def plan_of(name: str, *, as_stored: bool) -> MemoryPlan:
    """A rank's plan on the node that deploy/ is for; skips, by name, what no family reads yet."""
    family = facts_of(TABLE[name].model)["model_type"]
    if family not in FAMILIES:
        pytest.skip(f"{name}: {family} is not a family yet, so that it cannot be planned")
    settings = settings_of(name)
    if as_stored:
        forms = {"bf16_weights": "checkpoint", "dense_weights": "checkpoint", "fp8_head": "gemv"}
        settings = structs.replace(settings, engine=structs.replace(settings.engine, **forms))
    return elsewhere(settings, "cuda", DEPLOY, unified=True)


def test_every_deployment_has_its_line() -> None:
    found = {path.stem for path in DEPLOY.glob("*.json")}
    assert found == {*TABLE, "demo"}


@deployment
def test_a_deployment_says_what_its_line_does(name: str) -> None:
    settings, row = settings_of(name), TABLE[name]
    engine = settings.engine
    assert f"-w{settings.world_size}" == name[name.rindex("-") :]
    said = Row(
        settings.model,
        engine.max_concurrency,
        engine.kv_capacity,
        engine.dflash_model or engine.mtp_depth * engine.mtp,
        engine.prefix_cache_gib,
    )
    assert said == row
    assert (engine.backend, engine.queue_limit, engine.max_connections) == ("cuda", 8, 64)


@deployment
def test_the_draft_is_one_that_there_is(name: str) -> None:
    row = TABLE[name]
    facts = facts_of(row.model)
    if isinstance(row.draft, str):
        assert facts_of(row.draft)["architectures"] == ["DFlash2DraftModel"]
    else:
        assert any(facts.get(field, 0) for field in DRAFT_FIELDS)
        block = facts.get("dspark_block_size", 5)
        assert 1 <= row.draft <= block


@deployment
def test_a_rank_fits_its_node(name: str) -> None:
    plan, node = plan_of(name, as_stored=False), NODES["gb10"]
    assert node.room is not None
    require_fit(plan, node.room.free_bytes, node.room.name, node.headroom)
    drafts = [item.name for item in plan.items if "draft" in item.name]
    assert drafts, "the draft is not planned"


@pytest.mark.parametrize("name", [*WEIGHTS, *ALL])
def test_a_rank_takes_what_the_reference_system_states(name: str) -> None:
    if name in ALL:
        assert plan_of(name, as_stored=False).total / GIB == pytest.approx(ALL[name], rel=0.08)
    else:
        weights = plan_of(name, as_stored=name in AS_STORED).weight_bytes
        assert weights / GIB == pytest.approx(WEIGHTS[name], rel=0.08)


def test_a_plan_is_printed_from_facts(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/nowhere")
    config = str(DEPLOY / "qwen3.8-27b-nvfp4-w4.json")
    assert main(["plan", config, "--node", "gb10"]) == 0
    printed = capsys.readouterr().out
    for item in ("weights: mlp", "weights: drafter mlp", "drafter context", "in all, per rank"):
        assert f"MiB  {item}" in printed
    assert f"{DENSE_FP4} is not on this machine: planned from" in printed
    # It is for a later version: shown whole, and said last.
    assert printed.endswith(f"\n{LATER}\n")
    assert main(["plan", config, "--node", "gb10", "--room", "9"]) == 1
    assert "exceed the 9216 MiB that are free there" in capsys.readouterr().err
    assert main(["plan", config, "--node", "gb11"]) == 1
    assert "--node: 'gb11', known are gb10" in capsys.readouterr().err


def test_facts_are_found_by_the_models_whole_name(tmp_path: Path) -> None:
    assert stand_in("nvidia/GLM-4.7-NVFP5", DEPLOY) is None
    assert stand_in("any/model", tmp_path) is None
    folder = tmp_path / "facts"
    folder.mkdir()
    for said in ("absent.json", "../x.json", 3):
        (folder / "index.json").write_text(json.dumps({"a/b": said}))
        with pytest.raises(CheckpointError, match=r"index.json: a/b: .* is no file beside it"):
            stand_in("a/b", tmp_path)
