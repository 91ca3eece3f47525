"""Start the process that runs a rank on this node; or leave nothing of the attempt."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from dgpp.cluster.errors import ClusterError
from dgpp.cluster.installed import HAVE_PROGRAM
from dgpp.cluster.messages import Start
from dgpp.cluster.place import Place, named
from dgpp.cluster.record import ProcessRecord, boot_id, start_ticks, write_record
from dgpp.config.version import version

_WHEN_REMEMBERED = 'read -r _ && exec "$@" </dev/null'
"""For sh: what follows is run once its record is written, and never where the launcher is killed
before that. What nobody remembers could not be ended."""

_children: list[subprocess.Popen[bytes]] = []
"""Ranks that this very process started, until their remains are cleared away."""


def start(request: Start) -> ProcessRecord:
    """Start the rank and remember its process. Raises OSError or ClusterError: then nothing is left
    but the log."""
    place, rank = request.place, request.rank
    reap()
    for folder in (place.logs, place.stage):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in (place.operations(rank), Path(f"{place.operations(rank)}.1")):
        old.unlink(missing_ok=True)
    try:
        return _start(request)
    except BaseException:
        clear(place, rank)
        raise


def clear(place: Place, rank: int) -> None:
    """Remove what `rank` was started with."""
    reap()
    for file in _staged(place, rank):
        file.unlink(missing_ok=True)
    with suppress(OSError):
        # Other ranks of this host may still have theirs there.
        place.stage.rmdir()


def _staged(place: Place, rank: int) -> tuple[Path, Path, Path]:
    """Settings, token and site settings."""
    stem = place.stage / f"rank{rank}"
    return place.settings(rank), stem.with_suffix(".token"), stem.with_suffix(".env")


def _start(request: Start) -> ProcessRecord:
    place, rank = request.place, request.rank
    config, token, site = _staged(place, rank)
    _stage(config, request.config)
    program = (os.path.expanduser(word) for word in request.command)  # noqa: PTH111 - words as well
    command = [*program, "run", str(config), "--set", f"paths.log_dir={place.logs}"]
    if request.apart:
        command += ["--rank", str(rank)]
    if request.token:
        _stage(token, request.token)
        command += ["--set", f"engine.cluster_token_file={token}"]
    # What the site says is in the settings already; a file of this node must not say it again.
    _stage(site, "")
    environment = os.environ | request.environment | {"DGPP_ENV_FILE": str(site)}
    process = _spawn(command, environment, place.log(rank), place.stage)
    record = ProcessRecord(
        rank,
        process.pid,
        start_ticks(process.pid),
        boot_id(),
        time.time(),
        version(),
        request.source,
        tuple(command),
        request.run,
    )
    assert process.stdin is not None
    try:
        write_record(place.record(rank), record)
        process.stdin.write(b"\n")
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        process.stdin.close()
    return record


def _spawn(
    command: list[str], environment: dict[str, str], log: Path, folder: Path
) -> subprocess.Popen[bytes]:
    """A process of a session of its own that speaks to `log` alone, and waits for a line."""
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise ClusterError(f"{command[0]}: no program that this user may run; {HAVE_PROGRAM}")
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WHEN_REMEMBERED, "sh", *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    _children.append(process)
    return process


def _stage(file: Path, text: str) -> None:
    """`text` in `file`, which nobody else may read."""
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with named(file), os.fdopen(handle, "w") as out:
        out.write(text)


def reap() -> None:
    for child in list(_children):
        if child.poll() is not None:
            # One by one: a rank may be started meanwhile, for another node's question.
            with suppress(ValueError):
                _children.remove(child)
