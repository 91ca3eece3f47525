"""What of a GLM-4.7 is beyond kernels that are made for fixed sizes, by the keys of config.json."""

from __future__ import annotations

from collections.abc import Iterator

from dgpp.models.glm.shapes import shared_width
from dgpp.models.glm4_moe.config import Glm4MoeConfig
from dgpp.models.glm4_moe.layer import attention_shape
from kernels_numba.gpu.limits import KernelLimits
from kernels_numba.weights import Form


def beyond(config: Glm4MoeConfig, world: int, limits: KernelLimits) -> Iterator[str]:
    """Each size that one of `world` ranks could not compute within `limits`, to follow "takes"."""
    routed = not config.dense(config.num_hidden_layers - 1) or config.num_nextn_predict_layers > 0
    sizes = {"head_dim": limits.head, "vocab_size": limits.ids * world}
    if routed:
        sizes |= {"n_routed_experts": limits.experts, "num_experts_per_tok": limits.top}
    for field, most in sizes.items():
        if getattr(config, field) > most:
            yield f"{field} up to {most}, config.json has {getattr(config, field)}"
    steps = {"head_dim": limits.head_step, "hidden_size": limits.sum_step if world > 1 else 1}
    for field, step in steps.items():
        if getattr(config, field) % step:
            yield f"{field} in multiples of {step}, config.json has {getattr(config, field)}"
    for field, (module, ranks) in _stacked(config, world, routed=routed).items():
        step = limits.fp8_step * ranks
        fp8 = config.format(module).form is Form.FP8_BLOCK
        if fp8 and getattr(config, field) % step:
            yield f"{field} in multiples of {step} in FP8, config.json has {getattr(config, field)}"
    for field, (module, rows, columns) in _matrices(config, routed=routed).items():
        own = -(-rows // world)
        if not limits.holds(config.format(module).form, own, columns):
            of = f"config.json's {field} {getattr(config, field)}"
            yield f"no matrix of {own} × {columns} values, which {of} makes"


def _stacked(config: Glm4MoeConfig, world: int, *, routed: bool) -> dict[str, tuple[str, int]]:
    """Rows of projections that others follow in one matrix, by the field that counts them, those of
    heads aside: a module, and how many ranks share them out."""
    last, found = f"model.layers.{config.num_hidden_layers - 1}", {}
    if config.first_k_dense_replace:
        found["intermediate_size"] = ("model.layers.0.mlp.gate_proj", world)
    if routed:
        found["moe_intermediate_size"] = (f"{last}.mlp.experts.0.gate_proj", world)
        found["hidden_size"] = (f"{last}.mlp.experts.0.down_proj", 1)
    return found


def _matrices(config: Glm4MoeConfig, *, routed: bool) -> dict[str, tuple[str, int, int]]:
    """The largest matrices by the field that makes them so: module, rows of all ranks, columns."""
    hidden, last = config.hidden_size, f"model.layers.{config.num_hidden_layers - 1}"
    found = {
        "num_attention_heads": (f"{last}.self_attn.q_proj", attention_shape(config).qkv, hidden)
    }
    if config.first_k_dense_replace:
        dense = 2 * config.intermediate_size
        found["intermediate_size"] = ("model.layers.0.mlp.gate_proj", dense, hidden)
    if routed:
        inner, shared = 2 * config.moe_intermediate_size, 2 * shared_width(config)
        name = f"{last}.mlp.experts.0.gate_proj"
        found["moe_intermediate_size"] = (name, inner, hidden)
        name = f"{last}.mlp.shared_experts.gate_proj"
        found["n_shared_experts"] = (name, shared, hidden)
    return found
