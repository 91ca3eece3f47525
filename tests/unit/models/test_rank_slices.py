"""What each rank holds, and worlds that a model cannot be shared out to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_fixtures import FIXTURES, config_of

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.registry import family_of
from dgpp.models.shard import VOCABULARY_STEP, Shard
from dgpp.models.sources import LoadedWeights
from kernels_numba.cpu.backend import CpuBackend
from kernels_numba.weights import Part


@given(size=st.integers(1, 200_000), world=st.integers(1, 8))
def test_slices_of_the_vocabulary_are_the_whole_in_order(size: int, world: int) -> None:
    shards = [Shard(rank, world) for rank in range(world)]
    try:
        slices = [shard.vocabulary(size) for shard in shards]
    except ConfigError:
        assert size <= VOCABULARY_STEP * (world - 1)
        return
    assert [token for part in slices for token in part] == list(range(size))
    assert all(part.start % VOCABULARY_STEP == 0 for part in slices)
    assert all(len(part) for part in slices)
    assert max(map(len, slices)) == len(slices[0]) < size / world + 2 * VOCABULARY_STEP


def test_a_vocabulary_that_divides_is_shared_out_equally() -> None:
    assert [Shard(r, 4).vocabulary(151_552) for r in range(4)] == [
        range(r * 37_888, (r + 1) * 37_888) for r in range(4)
    ]


WEIGHTS = ("attention", "mlp", "experts", "shared experts", "head", "embedding", "norms", "router")


def weights(variant: str, world: int, **more) -> dict[str, int]:
    plan = plan_memory(config_of(variant), MemorySettings(**more), world)
    sizes = {item.name: item.bytes for item in plan.items}
    return {name: sizes[f"weights: {name}"] for name in WEIGHTS} | {"kv": sizes["kv cache"]}


@pytest.mark.parametrize("variant", ["bf16", "nvfp4"])
def test_a_rank_of_two_plans_half_of_what_is_shared_out(variant: str) -> None:
    alone, half = weights(variant, 1), weights(variant, 2)
    for name in ("attention", "mlp", "experts", "shared experts", "head", "kv"):
        # A matrix cut by columns has its factor per row on both.
        factors = 1.05 if variant == "nvfp4" else 1.0
        assert alone[name] <= half[name] * 2 <= alone[name] * factors, name
    for name in ("embedding", "norms", "router"):
        assert half[name] == alone[name], name
    split = weights(variant, 2, embed_sharding="vocab")
    assert split["embedding"] * 2 == alone["embedding"]


def refusal(world: int, variant: str = "bf16", **fields) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_memory(config_of(variant) | fields, MemorySettings(), world)
    return str(caught.value)


def test_worlds_that_do_not_divide_are_refused_by_name() -> None:
    assert refusal(3).endswith(
        "world_size: 3 does not divide config.json's num_attention_heads (8)"
    )
    assert "config.json's num_key_value_heads (4)" in refusal(8)
    assert "config.json's moe_intermediate_size (30)" in refusal(4, moe_intermediate_size=30)
    assert "model.layers.0.mlp.gate_proj (126)" in refusal(4, intermediate_size=126)
    assert "vocab_size of 96 is 3 slices of 32, too few for 4 ranks" in refusal(4, vocab_size=96)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    ("fields", "name", "columns"),
    [
        ({"hidden_size": 72}, "model.layers.0.mlp.gate_proj", 72),
        ({"moe_intermediate_size": 40}, "model.layers.2.mlp.experts.0.down_proj", 40),
        ({"intermediate_size": 8}, "model.layers.0.mlp.down_proj", 8),
    ],
)
def test_nvfp4_rows_that_are_no_whole_groups_are_named_before_weights(world, fields, name, columns):
    """Sixteen values share a scale, and no backend reads less than all of them."""
    with pytest.raises(CheckpointError) as caught:
        plan_memory(config_of("nvfp4") | fields, MemorySettings(), world)
    assert str(caught.value) == (
        f"config.json: {name} has {columns} columns, which are no whole groups of 16 "
        "(NVFP4 (modelopt))"
    )
    plan_memory(config_of("bf16") | fields, MemorySettings(), world)


def test_nvfp4_is_cut_between_groups_only() -> None:
    message = refusal(4, "nvfp4", moe_intermediate_size=32)
    assert "4 cuts model.layers.2.mlp.experts.0.down_proj into 8 columns" in message
    assert "no whole groups of 16 (NVFP4 (modelopt))" in message


class Kept(CpuBackend):
    """Remembers the parts of every matrix in the order in which they were taken over."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.parts: list[list[Part]] = []

    def matrix(self, parts):
        self.parts.append(list(parts))
        return super().matrix(parts)


def loaded(variant: str, shard: Shard):
    checkpoint = Checkpoint(FIXTURES / f"glm-4.7-{variant}")
    backend = Kept()
    family = family_of(checkpoint.config)
    source = LoadedWeights(Binding(checkpoint), backend, shard)
    family.build(family.parse(checkpoint.config), source, drafts=True)
    return backend.parts, source.account


@pytest.mark.parametrize("split_embedding", [False, True])
@pytest.mark.parametrize("variant", ["bf16", "nvfp4"])
def test_parts_of_all_ranks_make_every_matrix(variant: str, split_embedding: bool) -> None:
    world = 4
    alone, _ = loaded(variant, Shard())
    ranks = [loaded(variant, Shard(rank, world, split_embedding)) for rank in range(world)]
    halved = 0
    for place, whole in enumerate(alone):
        for index, part in enumerate(whole):
            pieces = [parts[place][index] for parts, _ in ranks]
            joined = [piece.data for piece in pieces]
            if pieces[0].data.shape == part.data.shape:
                assert all(np.array_equal(data, part.data) for data in joined)
                continue
            halved += 1
            axis = 0 if pieces[0].data.shape[0] < part.data.shape[0] else 1
            np.testing.assert_array_equal(np.concatenate(joined, axis), part.data)
            if part.scale is not None:
                scales = [piece.scale for piece in pieces]
                np.testing.assert_array_equal(np.concatenate(scales, axis), part.scale)
                assert {piece.multiplier for piece in pieces} == {part.multiplier}
    assert halved > 100
    accounts = [account for _, account in ranks]
    first = accounts[0]
    assert all(account.digests == first.digests for account in accounts)
    assert ("model.embed_tokens" in first.digests) is not split_embedding
    assert "model.layers.3.mlp.gate" in first.digests
    assert "lm_head" not in first.digests
    total = sum(account.read for account in accounts)
    assert total == first.total + (world - 1) * first.replicated
    bound = Binding(Checkpoint(FIXTURES / f"glm-4.7-{variant}")).checkpoint
    used = [name for name in bound.names if not name.endswith(("_scale", "scale_2"))]
    copies = ("shared_head.head.weight", "embed_tokens.weight")
    sizes = {n: e.end - e.begin for n in used if (e := bound.entry(n)) is not None}
    extra = sum(size for n, size in sizes.items() if "layers" in n and n.endswith(copies))
    assert first.total == sum(sizes.values()) - extra
