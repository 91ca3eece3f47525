"""GLM-4.7's draft level."""

from __future__ import annotations

from dgpp.models.glm4_moe.config import Glm4MoeConfig
from dgpp.models.layers.mtp import Layer, MtpLevel, MtpNames
from dgpp.models.sources import WeightSource


def draft_level(config: Glm4MoeConfig, source: WeightSource, index: int, layer: Layer) -> MtpLevel:
    """Layer `index` as a level. Embedding and head are the target's: the checkpoint's copies equal
    them."""
    prefix = f"model.layers.{index}"
    names = MtpNames(
        f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.shared_head.norm"
    )
    source.ignore(f"{prefix}.embed_tokens.weight")
    source.ignore(f"{prefix}.shared_head.head.weight")
    merge = config.format(names.merge)
    return MtpLevel(source, names, layer, config.hidden_size, config.rms_norm_eps, merge)
