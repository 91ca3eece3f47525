"""A model's config.json cut to its first layers: real widths, fewer of them."""

from __future__ import annotations

from typing import Any

from dgpp.errors import ConfigError

LAYERS = "num_hidden_layers"


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
        name: value[:layers] if isinstance(value, list) and len(value) == held else value
        for name, value in config.items()
    }
    return {**cut, LAYERS: layers}
