"""Releases: one archive with everything, proved file by file, installed side by side and offline.

An archive `dgpp-VERSION.tar.zst` holds one folder `dgpp-VERSION` with MANIFEST.sha256 as its first
file, which names every other file with its SHA-256: wheels for each platform, deployments, scripts
and documentation.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from dgpp.cluster.errors import ReleaseError
from dgpp.cluster.installed import UNFINISHED, program_of
from dgpp.cluster.interruption import Interruption, raised
from dgpp.cluster.release_archive import prove, unpack
from dgpp.cluster.release_programs import Children, make_programs, refuse_place
from dgpp.cluster.release_room import FULL, require_room

KEY = "DGPP_RELEASE_DIR"


def install(archive: Path, releases: Path) -> tuple[str, Path]:
    """Unpack and prove `archive`, and make its programs in `releases`/VERSION; the version and
    where its dgpp is. A release is either whole or absent. Raises ReleaseError."""
    refuse_place(releases, KEY)
    interruption = Interruption()
    try:
        with raised(interruption):
            releases.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(releases) as lock:
                _sweep(releases)
                return _install(archive, releases, Children(lock, interruption))
    except OSError as error:
        raise ReleaseError(_explained(error, archive, releases)) from error


def _explained(error: OSError, archive: Path, releases: Path) -> str:
    """Where it went wrong, and by which key that place is named where it is not the archive's."""
    what = error.strerror or str(error)
    # A copy of a folder has the errors of its files as text alone.
    if error.errno in FULL or any(os.strerror(number) in what for number in FULL):
        number = error.errno or errno.ENOSPC
        return (
            f"{KEY}: {releases}: {os.strerror(number)}; nothing was installed: make room there, or "
            "name another folder"
        )
    where = Path(os.fsdecode(error.filename)) if error.filename else archive
    inside = where.is_relative_to(releases) or releases.is_relative_to(where)
    return f"{KEY}: {where}: {what}" if inside and where != archive else f"{where}: {what}"


def _sweep(releases: Path) -> None:
    """Remove what installs have left that were killed."""
    for left in releases.glob(".*.partial"):
        shutil.rmtree(left)
    for mark in releases.glob(f"[!.]*/{UNFINISHED}"):
        partial = _partial(releases)
        mark.parent.rename(partial)
        shutil.rmtree(partial)


def _partial(releases: Path) -> Path:
    """The name of what is no release yet, or no more."""
    return releases / f".{os.getpid()}.partial"


def _install(archive: Path, releases: Path, children: Children) -> tuple[str, Path]:
    partial = _partial(releases)
    try:
        version = unpack_proved(archive, partial)
        target = releases / version
        if target.exists():
            raise ReleaseError(f"{target} is there already; remove it to install {version} anew")
        # An environment names its own place: it is made where it will stay.
        (partial / UNFINISHED).touch()
        partial.rename(target)
        try:
            make_programs(target, children)
            _add_pages(target)
            (target / UNFINISHED).unlink()
        except BaseException:
            # By one step, so that half of it is never taken for a release.
            target.rename(partial)
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return version, program_of(target)


def unpack_proved(archive: Path, target: Path) -> str:
    """`unpack` where there is room, the archive being held against the digest beside it."""
    with ThreadPoolExecutor(1) as beside:
        proving = beside.submit(prove, archive)
        try:
            require_room(archive, target.parent, KEY)
            version = unpack(archive, target)
        except ReleaseError:
            # That it is another archive says more than what this made of it.
            proving.result()
            raise
        proving.result()
    return version


def _add_pages(release: Path) -> None:
    """The manual's pages where `man` looks beside the environment's programs."""
    if (release / "man").is_dir():
        shutil.copytree(release / "man", release / "venv" / "share" / "man", dirs_exist_ok=True)


@contextmanager
def _one_at_a_time(releases: Path) -> Iterator[int]:
    file = os.open(releases / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ReleaseError(f"{releases}: another install is under way") from None
        yield file
    finally:
        os.close(file)
