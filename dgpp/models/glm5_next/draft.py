"""GLM-5.3-Flash's draft level: a sparse layer with experts on one plain residual."""

from __future__ import annotations

from dgpp.models.glm5_next.config import Glm5NextConfig
from dgpp.models.layers.mtp import Layer, MtpLevel, MtpNames
from dgpp.models.sources import WeightSource


def draft_level(config: Glm5NextConfig, source: WeightSource, index: int, layer: Layer) -> MtpLevel:
    """Layer `index` as a level."""
    prefix = f"model.language_model.layers.{index}"
    names = MtpNames(
        f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.shared_head.norm"
    )
    source.ignore(f"{prefix}.embed_tokens.weight")
    source.ignore(f"{prefix}.shared_head.head.weight")
    sizes = (config.hidden_size, config.rms_norm_eps)
    return MtpLevel(source, names, layer, *sizes, config.format(names.merge))
