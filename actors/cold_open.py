"""The disk tier's files of one rank, opened before the model is loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from actors.boot import Boot
from actors.cold_disk import ColdFiles
from actors.cold_folder import OsFolder
from actors.facts import facts


def open_cold(boot: Boot) -> ColdFiles | None:
    """None where the deployment has no disk tier. Raises ConfigError where it cannot be had."""
    limits, nvme_cache = boot.limits, boot.settings.nvme_cache
    if not limits.cold_pages:
        return None
    return ColdFiles(
        OsFolder(Path(nvme_cache.path).expanduser()),
        boot.rank,
        limits.cold_page_bytes,
        limits.cold_pages,
        _key(boot),
        keeps=nvme_cache.keep,
    )


def _key(boot: Boot) -> bytes:
    """A digest of all that cached state depends on: where one thing differs, none of it is used."""
    weights = sorted(
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in Path(boot.model_directory).glob("*.safetensors")
    )
    known = (facts(boot), boot.rank, boot.settings.world_size, boot.threads, weights)
    return hashlib.sha256(msgspec.msgpack.encode(known)).digest()
