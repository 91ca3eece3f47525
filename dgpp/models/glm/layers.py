"""How GLM families build their layers: MLP or experts, and draft layers behind the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from dgpp.models.glm.shapes import GlmConfig, moe_shape
from dgpp.models.layers.mlp import DenseMlp
from dgpp.models.layers.moe import RoutedMoe
from dgpp.models.layers.mtp import Layer, MtpLevel, MtpNames
from dgpp.models.sources import WeightSource

L = TypeVar("L", bound=Layer)


def feed_forward(
    config: GlmConfig, source: WeightSource, prefix: str, index: int, limit: float = 0.0
) -> DenseMlp | RoutedMoe:
    """What stands behind the attention of layer `index`, whose tensors begin with `prefix`."""
    name = f"{prefix}.mlp"
    if config.dense(index):
        sizes = (config.hidden_size, config.intermediate_size, config.rms_norm_eps)
        return DenseMlp(source, prefix, *sizes, config.format(f"{name}.gate_proj"), limit=limit)
    stored = config.format(f"{name}.experts.0.gate_proj")
    shared = config.format(f"{name}.shared_experts.gate_proj")
    return RoutedMoe(source, prefix, index, moe_shape(config, limit), stored, shared)


class Stack(NamedTuple, Generic[L]):
    """`layers` of the model, `levels` of drafts that were loaded, and `all` layers of both."""

    layers: list[L]
    levels: list[MtpLevel]
    all: list[L]


def stack(
    config: GlmConfig,
    source: WeightSource,
    prefix: str,
    layer_of: Callable[[WeightSource, int], L],
    *,
    drafts: bool,
) -> Stack[L]:
    """Layers numbered under `prefix`; those behind the model's own are draft levels, which are
    bound even where they are not loaded."""
    first = config.num_hidden_layers
    layers = [layer_of(source, index) for index in range(first)]
    extra = source if drafts else source.unloaded()
    drafting = range(first, first + config.num_nextn_predict_layers)
    held = [layer_of(extra, index) for index in drafting]
    levels = [
        _level(config, extra, f"{prefix}.{index}", layer)
        for index, layer in zip(drafting, held, strict=True)
    ]
    return Stack(layers, levels, [*layers, *held]) if drafts else Stack(layers, [], layers)


def _level(config: GlmConfig, source: WeightSource, prefix: str, layer: Layer) -> MtpLevel:
    """Embedding and head are the target's: the checkpoint's copies equal them."""
    names = MtpNames(
        f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.shared_head.norm"
    )
    source.ignore(f"{prefix}.embed_tokens.weight")
    source.ignore(f"{prefix}.shared_head.head.weight")
    sizes = (config.hidden_size, config.rms_norm_eps)
    return MtpLevel(source, names, layer, *sizes, config.format(names.merge))
