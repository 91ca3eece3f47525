"""MiMo-V2.6-Flash's draft levels: windowed attention and a dense MLP each."""

from __future__ import annotations

from dgpp.checkpoint.formats import BF16
from dgpp.models.layers.mtp import Layer, MtpLevel, MtpNames
from dgpp.models.mimo_v2.config import MimoConfig
from dgpp.models.sources import WeightSource


def draft_level(config: MimoConfig, source: WeightSource, prefix: str, layer: Layer) -> MtpLevel:
    """The level under `prefix`. A next level continues from the layer's output before
    `final_layernorm`."""
    names = MtpNames(
        f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.final_layernorm"
    )
    sizes = (config.hidden_size, config.layernorm_epsilon)
    return MtpLevel(source, names, layer, *sizes, BF16, raw=True)
