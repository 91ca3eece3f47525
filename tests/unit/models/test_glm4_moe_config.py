"""What GLM-4.7's config.json may and may not say."""

from __future__ import annotations

import pytest
from model_fixtures import config_of

from dgpp.checkpoint.formats import BF16, NVFP4_MODELOPT
from dgpp.errors import CheckpointError, MemoryPlanError
from dgpp.models.glm4_moe.config import parse
from dgpp.models.plan import MemoryPlan, MemorySettings, plan_memory, require_fit
from dgpp.models.registry import family_of


def test_sizes_are_read_from_the_file() -> None:
    config = parse(config_of("bf16"))
    assert (config.head_dim, config.rotated, config.n_routed_experts) == (16, 8, 8)
    assert config.format("model.layers.0.mlp.gate_proj") is BF16


def test_newer_files_keep_rope_in_an_object() -> None:
    raw = config_of("bf16")
    theta, factor = raw.pop("rope_theta"), raw.pop("partial_rotary_factor")
    raw["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": theta,
        "partial_rotary_factor": factor,
    }
    assert parse(raw) == parse(config_of("bf16"))
    raw["rope_parameters"]["rope_type"] = "yarn"
    with pytest.raises(CheckpointError, match=r"rope_parameters.rope_type is 'yarn'"):
        parse(raw)


def test_modelopt_names_what_stays_unquantised() -> None:
    config = parse(config_of("nvfp4"))
    assert config.format("model.layers.1.mlp.experts.3.down_proj") is NVFP4_MODELOPT
    assert config.format("model.layers.1.self_attn.q_proj") is BF16
    assert config.format("model.layers.4.mlp.experts.0.up_proj") is BF16
    assert config.format("lm_head") is BF16


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("n_group", 2, "n_group is 2"),
        ("rope_scaling", {"type": "yarn"}, "rope_scaling"),
        ("sliding_window", 128, "sliding_window is not known"),
        ("hidden_size", "64", "hidden_size"),
        ("num_key_value_heads", 3, "num_attention_heads is not a multiple"),
        ("partial_rotary_factor", 1.5, "partial_rotary_factor"),
        ("num_experts_per_tok", 9, "num_experts_per_tok"),
        ("quantization_config", {"quant_method": "gptq"}, "quant_method is 'gptq'"),
        ("unquantised", [], "unquantised is not known"),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse({**config_of("bf16"), field: value})


def test_a_missing_size_is_named() -> None:
    raw = config_of("bf16")
    del raw["vocab_size"]
    with pytest.raises(CheckpointError, match="vocab_size"):
        parse(raw)


def test_other_families_are_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="model_type 'llama' is not served"):
        family_of({"model_type": "llama"})


def test_the_plan_counts_what_the_sizes_say() -> None:
    plan = plan_memory(config_of("bf16"), MemorySettings(slots=2, kv_capacity=1000))
    items = {item.name: item.bytes for item in plan.items}
    assert plan.limits.blocks * plan.limits.block_tokens == 1024
    assert plan.limits.position_ceiling == 1024
    # 5 layers × (q 128 + k 64 + v 64 rows of 64 and o 64 rows of 128) in bf16, float32 biases.
    assert items["weights: attention"] == 5 * (2 * (256 * 64 + 64 * 128) + 4 * 256)
    assert items["weights: embedding"] == items["weights: head"] == 2 * 512 * 64
    # Keys and values of 4 heads × 16 float32 values in 5 layers.
    assert items["kv cache"] == 1024 * 5 * 2 * 4 * 16 * 4
    assert plan.total == sum(items.values())
    assert "float32" in plan.notes[0]


def test_drafts_enlarge_the_plan() -> None:
    without = plan_memory(config_of("bf16"), MemorySettings())
    with_drafts = plan_memory(config_of("bf16"), MemorySettings(drafts=True))
    assert with_drafts.total > without.total
    assert with_drafts.token_bytes == without.token_bytes * 6 // 5


@pytest.mark.parametrize("capacity", [1 << 10, 1 << 20])
def test_what_would_fit_does_and_a_block_more_does_not(capacity: int) -> None:
    """Fewer tokens than the model's positions take smaller rotary tables as well."""

    def plan_of(tokens: int) -> MemoryPlan:
        return plan_memory(config_of("bf16"), MemorySettings(kv_capacity=tokens))

    whole = plan_of(2 * capacity)
    room = plan_of(capacity).total
    with pytest.raises(MemoryPlanError) as caught:
        require_fit(whole, room, headroom=0)
    assert caught.value.kv_capacity == capacity
    with pytest.raises(MemoryPlanError) as caught:
        require_fit(whole, room - 1, headroom=0)
    assert caught.value.kv_capacity == capacity - whole.limits.block_tokens


def test_a_plan_that_does_not_fit_says_what_would() -> None:
    plan = plan_memory(config_of("bf16"), MemorySettings(kv_capacity=1 << 20))
    require_fit(plan, plan.total + 100, headroom=100)
    block = plan.token_bytes * plan.limits.block_tokens
    with pytest.raises(MemoryPlanError, match=f"fits is {(1 << 20) - 64}") as caught:
        require_fit(plan, plan.total - 1, headroom=0)
    assert "largest: kv cache" in str(caught.value)
    assert block > 1
    with pytest.raises(MemoryPlanError, match=r"no engine.kv_capacity fits"):
        require_fit(plan, 1 << 20)
