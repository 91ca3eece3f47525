"""Where a deployment keeps its files on a node: one folder of its own, named by its digest."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from dgpp.cluster.errors import LockedError
from dgpp.errors import ConfigError

DEPLOYMENTS = "deployments"
ID_DIGITS = 16


def deployment_id(config: Path) -> str:
    """The name of the deployment that the file `config` describes, whatever is in it."""
    absolute = str(config.expanduser().resolve())
    return hashlib.sha256(absolute.encode()).hexdigest()[:ID_DIGITS]


class Place(msgspec.Struct, frozen=True):
    """`log_dir` and `stage_dir` as the site names them, `~` being each node's own."""

    log_dir: str
    stage_dir: str
    deployment: str

    @property
    def logs(self) -> Path:
        """Logs, operation streams and process records."""
        return Path(self.log_dir).expanduser() / DEPLOYMENTS / self.deployment

    @property
    def collected(self) -> Path:
        """What other machines' ranks left, on rank 0's."""
        return self.logs / "collected"

    @property
    def stage(self) -> Path:
        """The settings and the token that ranks of this node are started with."""
        return Path(self.stage_dir).expanduser() / DEPLOYMENTS / self.deployment

    def log(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.log"

    def record(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.json"

    def settings(self, rank: int) -> Path:
        """What `rank` is started with, flags and site included."""
        return self.stage / f"rank{rank}.config.json"

    def operations(self, rank: int) -> Path:
        return self.logs / f"serve_rank{rank}.ops"


@contextmanager
def named(file: Path) -> Iterator[None]:
    """An OSError that names no file, as that of a write does not, names `file` from here on."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(file)
        raise


@contextmanager
def locked(place: Place) -> Iterator[None]:
    """One command at a time works on a deployment. The lock is its process's and ends with it, so
    none is left behind by a crash or a power cut. Raises LockedError."""
    try:
        place.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(place.logs / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"paths.log_dir: {place.logs}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip()
            raise LockedError(
                f"{place.logs}: another command is at work on this deployment (process {holder}); "
                "wait for it, or end it"
            ) from None
        with suppress(OSError):
            # Who holds it is said to others alone; a full disk is named where it matters.
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)
