"""GLM-5.3's draft level: a whole layer with an indexer of its own."""

from __future__ import annotations

from dgpp.models.glm_moe_dsa.config import GlmDsaConfig
from dgpp.models.layers.mtp import Layer, MtpLevel, MtpNames
from dgpp.models.sources import WeightSource


def draft_level(config: GlmDsaConfig, source: WeightSource, index: int, layer: Layer) -> MtpLevel:
    """Layer `index` as a level. Embedding and head are the target's: the checkpoint's copies equal
    them."""
    prefix = f"model.layers.{index}"
    names = MtpNames(
        f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.shared_head.norm"
    )
    source.ignore(f"{prefix}.embed_tokens.weight")
    source.ignore(f"{prefix}.shared_head.head.weight")
    sizes = (config.hidden_size, config.rms_norm_eps)
    return MtpLevel(source, names, layer, *sizes, config.format(names.merge))
