"""From command-line options to the settings of the deployment that is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dgpp.bench.cut import cut_layers
from dgpp.checkpoint.json_file import read_json
from dgpp.checkpoint.model_files import find_model
from dgpp.config.document import Override
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError

BLOCK_TOKENS = 64


def whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    """ "1,8,16" as numbers, ascending. Raises ConfigError naming the flag."""
    parts = text.replace(" ", "").split(",")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**9 for part in parts):
        raise ConfigError(f"{flag}: expected positive integers separated by commas, got {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def overrides(batch: int, tokens: int, told: Mapping[str, str | int | None]) -> list[Override]:
    """What a measurement lays over the deployment: room for `batch` requests of `tokens` each, and
    the options that were told, by the name of their engine key."""
    rounded = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
    values = [
        Override("engine.max_concurrency", batch, "--batch"),
        Override("engine.kv_capacity", batch * rounded, "--context"),
    ]
    for name, value in told.items():
        if value is not None:
            values.append(Override(f"engine.{name}", value, f"--{name.replace('_', '-')}"))
    return values


@contextmanager
def cut_model(settings: Settings, layers: int | None) -> Iterator[Settings]:
    """`settings` with the model cut to its first `layers` layers, where that is asked for.

    Raises ConfigError where real weights are to be loaded: a cut model has none.
    """
    if layers is None:
        yield settings
        return
    if settings.engine.load != "dummy":
        raise ConfigError("--layers: a model with fewer layers has random weights: --load dummy")
    config = read_json(find_model(settings.model, weights=False).config)
    with TemporaryDirectory(prefix="dgpp-bench-") as folder:
        path = Path(folder) / "cut.json"
        path.write_text(json.dumps(cut_layers(config, layers)), "utf-8")
        yield msgspec.structs.replace(settings, model=str(path))


def require_positions(positions: int, contexts: Sequence[int], longest: int) -> None:
    """Raises ConfigError where the model has fewer positions than the contexts need."""
    if longest > positions:
        raise ConfigError(
            f"--context: {max(contexts)} needs {longest} positions, the model has {positions}"
        )
