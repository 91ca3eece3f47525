"""Qwen3.8-Flash-Next's config.json, parsed strictly: the text model's; images are not served."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpp.checkpoint.formats import BF16, FP8_TENSOR, Format
from dgpp.models.config_fields import (
    check_bounds,
    check_experts,
    check_least,
    check_multiples,
    check_rotation,
    check_share,
    refuse,
)
from dgpp.models.quantisation import UNQUANTISED, take_quantisation
from dgpp.models.qwen.config import FIXED as SHARED
from dgpp.models.qwen.config import HybridConfig, check_hybrid, read_hybrid
from dgpp.models.qwen4_exp.releases import release_forms
from kernels_numba.weights import VECTOR

FIXED: dict[str, tuple[Any, ...]] = {
    **SHARED,
    "indexer_kv_heads": (1,),
    "output_gate_type": ("sigmoid",),
}


class MtpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mtp`: what the draft level is."""

    layer_types: tuple[str, ...]
    num_hidden_layers: int
    rope_theta: float
    hybrid: bool = True
    mtp_use_hidden_state_from_layer: int | None = None


class Qwen4ExpConfig(HybridConfig, frozen=True, kw_only=True):
    """The sizes of a qwen4_exp text model, under the names of config.json. `mtp_experts` is how
    the draft level's experts are stored: one by one in the release's form, or all in two tensors.
    """

    indexer_budget: int
    indexer_compress_ratio: int
    indexer_head_dim: int
    indexer_n_heads: int
    hc_count: int
    hc_lowrank: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    ngram_size: int
    heads_per_ngram: int
    ngram_vocab_size_base: int
    make_ngram_vocab_size_divisible_by: int
    split_ngram_parts: int
    ple_embed_dim: int
    ple_conv_kernel_size: int
    ple_layer_ids: tuple[int, ...]
    eos_token_id: int
    seed: int = 1234
    mtp: MtpConfig | None = None
    mtp_experts: str = "fp8"

    @property
    def n_routed_experts(self) -> int:
        return self.num_experts

    @property
    def ngram_layer(self) -> int:
        """The layer before which n-grams come in; config.json counts layers from one."""
        return self.ple_layer_ids[0] - 1

    @property
    def table_format(self) -> Format:
        """How the rows of the n-gram table are stored: in every quantised release in FP8."""
        return BF16 if self.quantised is UNQUANTISED else FP8_TENSOR


def _check_ngrams(config: Qwen4ExpConfig) -> None:
    heads = (config.ngram_size - 1) * config.heads_per_ngram
    if config.ple_embed_dim % heads:
        raise refuse("ple_embed_dim", f"is not a multiple of the {heads} heads of n-grams")
    if len(config.ple_layer_ids) != 1:
        raise refuse("ple_layer_ids", f"names {len(config.ple_layer_ids)} layers, not one")
    if not 0 <= config.ngram_layer < config.num_hidden_layers or config.full(config.ngram_layer):
        raise refuse("ple_layer_ids", f"is {config.ple_layer_ids[0]}, no linear_attention layer")
    if not 0 <= config.eos_token_id < config.vocab_size:
        raise refuse("eos_token_id", f"is {config.eos_token_id}, not within the vocabulary")
    if config.make_ngram_vocab_size_divisible_by % config.split_ngram_parts:
        raise refuse("split_ngram_parts", "does not divide make_ngram_vocab_size_divisible_by")


def _check_draft(config: Qwen4ExpConfig) -> None:
    told = config.mtp
    if told is None:
        return
    check_bounds(told, ["num_hidden_layers"], 0, 1, "mtp.")
    wanted = MtpConfig(
        ("full_attention",) * told.num_hidden_layers,
        config.mtp_num_hidden_layers,
        config.rope_theta,
        told.hybrid,
    )
    for field in MtpConfig.__struct_fields__:
        if getattr(told, field) != getattr(wanted, field):
            raise refuse(
                f"mtp.{field}", f"is {getattr(told, field)!r}, not {getattr(wanted, field)!r}"
            )


def _check(config: Qwen4ExpConfig) -> None:
    small = ("indexer_head_dim", "indexer_n_heads", "num_experts", "ple_embed_dim", "hc_lowrank",
             "make_ngram_vocab_size_divisible_by", "split_ngram_parts")  # fmt: skip
    tiny = ("ple_conv_kernel_size", "hc_count", "indexer_compress_ratio", "heads_per_ngram",
            "ngram_size")  # fmt: skip
    inner = ("moe_intermediate_size", "shared_expert_intermediate_size", "indexer_budget")
    most = {**dict.fromkeys(small, 1 << 16), **dict.fromkeys(tiny, 64),
            **dict.fromkeys(inner, 1 << 20), "ngram_vocab_size_base": 1 << 31}  # fmt: skip
    check_hybrid(config, most)
    check_share(config, "indexer_budget", "indexer_compress_ratio")
    check_rotation("partial_rotary_factor", config.rotated, config.indexer_head_dim)
    check_multiples(config, ("hidden_size", "indexer_head_dim"), VECTOR)
    check_least(config, ("ple_conv_kernel_size", "ngram_size"), 2)
    check_experts(config, "num_experts")
    _check_ngrams(config)
    _check_draft(config)


def parse(config: dict[str, Any]) -> Qwen4ExpConfig:
    """Qwen4ExpConfig from a parsed config.json. Raises CheckpointError naming the field."""
    config = dict(config)
    found = take_quantisation(config)
    quantised = UNQUANTISED if found is None else release_forms(found)
    parsed = read_hybrid(
        config,
        Qwen4ExpConfig,
        "qwen4_exp",
        fixed=FIXED,
        quantised=quantised,
        derived={"mtp_experts": "fp8"},
    )
    _check(parsed)
    return parsed
