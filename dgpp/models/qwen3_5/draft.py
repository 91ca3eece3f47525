"""Qwen3.8-27B's own draft level: attention over all positions and an MLP."""

from __future__ import annotations

from dgpp.models.layers.mtp import Layer, MtpLevel, MtpNames
from dgpp.models.qwen3_5.config import Qwen35Config
from dgpp.models.sources import WeightSource

NAMES = MtpNames("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")


def draft_level(config: Qwen35Config, source: WeightSource, layer: Layer) -> MtpLevel:
    """The level, which chains by its output after `mtp.norm`."""
    sizes = (config.hidden_size, config.rms_norm_eps)
    return MtpLevel(source, NAMES, layer, *sizes, config.format(NAMES.merge), plus=1.0)
