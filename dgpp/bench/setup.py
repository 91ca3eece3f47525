"""From command-line options to the settings of the deployment that is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dgpp.bench.cut import cut_layers
from dgpp.checkpoint.json_file import named, read_json
from dgpp.checkpoint.model_files import find_model
from dgpp.config.document import Override
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError, MemoryPlanError
from dgpp.models.registry import family_of

BLOCK_TOKENS = 64


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
    file = find_model(settings.model, weights=False).config
    config = read_json(file)
    # What is of another kind than it should be is named by its field before it is cut.
    with named(file):
        family_of(config).settle(config)
    with TemporaryDirectory(prefix="dgpp-bench-") as folder:
        path = Path(folder) / "cut.json"
        path.write_text(json.dumps(cut_layers(config, layers)), "utf-8")
        yield msgspec.structs.replace(settings, model=str(path))


def require_positions(positions: int, contexts: Sequence[int], steps: int, least: int) -> None:
    """Raises ConfigError naming the option that asks for more positions than the model's: `steps`
    after a context and one more token, of which `least` are taken in any case."""
    context, had = max(contexts), f"the model has {positions} positions"
    if context + least >= positions:
        raise ConfigError(f"--context: {context} tokens and {least + 1} after them, {had}")
    if context + steps >= positions:
        raise ConfigError(
            f"--steps: {steps} after --context {context} and one more token, {had}: take at most "
            f"{positions - context - 1}, or a shorter context"
        )


@contextmanager
def blamed(
    contexts: Sequence[int], batch: int, steps: int, layers: int | None = None
) -> Iterator[None]:
    """What is inside measures `batch` requests of the longest context and its steps: where only
    their tokens do not fit into memory, these options are named; where the weights alone do not,
    the one that leaves some of them out (`layers` is what it says)."""
    try:
        yield
    except MemoryPlanError as error:
        if error.weights and layers != 1:
            fewer = f"take --layers below {layers}"
            first = "--layers N with --load dummy measures the model's first N layers alone"
            message = f"{error}; {fewer if layers else first}"
            raise MemoryPlanError(message, weights=True) from error
        if not error.kv_capacity:
            raise
        asked = f"--batch {batch} times --context {max(contexts)}"
        more = f" and {steps} --steps" if steps else ""
        message = f"{asked}{more}: {error}, which is {error.kv_capacity // batch} for each"
        raise MemoryPlanError(message, error.kv_capacity) from error
