"""How many plans an engine takes ahead of the verdict before them."""

from __future__ import annotations

from dgpp.errors import ConfigError

AUTO = -1


def pipeline_depth(wanted: int, backend: str, *, drafts: int = 0) -> int:
    """`engine.pipeline_depth` resolved for `backend` (never "auto") and steps of up to 1 + `drafts`
    tokens. Raises ConfigError where the depth cannot be had."""
    obstacle = ""
    if backend == "cpu":
        obstacle = "engine.backend cuda or scripted"
    elif drafts:
        obstacle = "steps of one token"
    if wanted > 0 and obstacle:
        raise ConfigError(f"engine.pipeline_depth: {wanted} needs {obstacle}")
    if wanted == AUTO:
        return int(backend == "cuda" and not obstacle)
    return wanted
