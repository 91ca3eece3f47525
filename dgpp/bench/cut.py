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
DELTA, KINDS = "linear_attn_config", ("kda_layers", "full_attn_layers")
"""An object with the layers of each kind by number."""
NGRAMS = "ple_layer_ids"
"""The layer before which n-grams come in, counted from one."""


def cut_layers(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """`config` with its first `layers` layers, lists of one entry a layer cut alike.

    Sizes may stand in `text_config`. Raises ConfigError where it has fewer layers, or states none,
    or where the first layers lack one that every model of the family has.
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
    if isinstance(delta := config.get(DELTA), dict):
        kinds = {name: [at for at in delta[name] if at < layers] for name in KINDS}
        cut[DELTA] = {**delta, **kinds}
    if NGRAMS in cut:
        _require(NGRAMS, min(cut[NGRAMS]), layers)
    if SOURCES in cut:
        cut |= _numbered(cut, layers)
    return {**cut, LAYERS: layers}


def _require(field: str, least: int, layers: int) -> None:
    """Raises ConfigError where the first layers have none of `field`, which begins with layer
    `least` of the model, counted from one."""
    if layers < least:
        raise ConfigError(f"--layers: {layers}, {field} has none of these: take at least {least}")


def _numbered(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Fields that name layers, as far as these are left; what stands beside their numbers too."""
    named = {name: value for name, value in config.items() if name.endswith("_layer_ids")}
    cut = {name: [at for at in value if at < layers] for name, value in named.items()}
    _require(SOURCES, min(named[SOURCES]) + 1, layers)
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
