"""A model's config.json cut to its first layers: real widths, fewer of them."""

from __future__ import annotations

from typing import Any

from dgpp.errors import ConfigError

LAYERS = "num_hidden_layers"
DRAFTED = "compress_ratios"
"""A list that goes on behind the layers: with an entry for each draft stage, which a cut model has
none of."""
SOURCES, CANDIDATES = "index_source_layer_ids", "candidate_source_layer_id"
"""Layers by number, of which one leaves candidates to those after it: of a cut model the last."""
FIRST = ("num_hash_layers", "first_k_dense_replace")
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
    cut |= {name: min(cut[name], layers) for name in FIRST if isinstance(cut.get(name), int)}
    if SOURCES in cut:
        cut |= _numbered(cut, layers)
    return {**cut, LAYERS: layers}


def _numbered(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Fields that name layers, as far as these are left; what stands beside their numbers too."""
    named = {name: value for name, value in config.items() if name.endswith("_layer_ids")}
    cut = {name: [at for at in value if at < layers] for name, value in named.items()}
    if not cut[SOURCES]:
        raise ConfigError(
            f"--layers: {layers}, the first layer of {SOURCES} is {named[SOURCES][0]}"
        )
    last = min(config[CANDIDATES], cut[SOURCES][-1])
    tables = [
        (layer, rows)
        for layer, rows in zip(
            config["engram_layer_ids"], config["engram_num_embeddings"], strict=True
        )
        if layer < last
    ]
    return {
        **cut,
        CANDIDATES: last,
        "engram_layer_ids": [layer for layer, _ in tables],
        "engram_num_embeddings": [rows for _, rows in tables],
        "num_nextn_predict_layers": 0,
        "dspark_target_layer_ids": [],
    }
