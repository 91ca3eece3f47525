"""A model's config.json cut to its first layers: real widths, fewer of them."""

from __future__ import annotations

from typing import Any

from dgpp.errors import ConfigError

LAYERS = "num_hidden_layers"
DRAFTED = "compress_ratios"
"""A list that goes on behind the layers: with an entry for each draft stage, which a cut model has
none of."""
FIRST = "num_hash_layers"
"""How many layers from the first on are of a kind."""


def cut_layers(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """`config` with its first `layers` layers, lists of one entry a layer cut alike.

    Sizes may stand in `text_config`. Raises ConfigError where it has fewer layers, or states none.
    """
    inner = config.get("text_config")
    if LAYERS not in config and isinstance(inner, dict):
        return {**config, "text_config": cut_layers(inner, layers)}
    held = config.get(LAYERS)
    if not isinstance(held, int) or not 1 <= layers <= held:
        raise ConfigError(f"--layers: {layers}, the model has {held}")
    cut = {
        name: value[:layers]
        if isinstance(value, list) and (len(value) == held or name == DRAFTED)
        else value
        for name, value in config.items()
    }
    if FIRST in cut:
        cut[FIRST] = min(cut[FIRST], layers)
    return {**cut, LAYERS: layers}
