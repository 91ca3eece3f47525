"""Releases: one archive with everything, proved file by file, installed side by side and offline.

An archive `dgpp-VERSION.tar.zst` holds one folder `dgpp-VERSION` with MANIFEST.sha256 as its first
file, which names every other file with its SHA-256: wheels for each platform, deployments, scripts
and documentation.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import zstandard

from dgpp.cluster.errors import ClusterError
from dgpp.cluster.interruption import raised

MANIFEST = "MANIFEST.sha256"
UNFINISHED = ".unfinished"
"""In a release until all of it is there."""
MANIFEST_BYTES = 16 << 20
MOST_BYTES = 64 << 30
"""No archive unpacks to more."""
COPY_BYTES = 256 << 10
_BLOCK_BYTES = 64 << 10
_LINE = re.compile(r"([0-9a-f]{64})  ([^\0\n]+)")
_FOLDER = re.compile(r"dgpp-([A-Za-z0-9][A-Za-z0-9_.+-]*)")


class ReleaseError(ClusterError):
    """An archive is damaged or not one of ours, or a release cannot be installed."""


def install(archive: Path, releases: Path) -> tuple[str, Path]:
    """Unpack and prove `archive`, and make its programs in `releases`/VERSION; the version and
    where its dgpp is. A release is either whole or absent. Raises ReleaseError."""
    try:
        with raised():
            releases.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(releases) as lock:
                _sweep(releases)
                return _install(archive, releases, lock)
    except OSError as error:
        raise ReleaseError(f"{error.filename or archive}: {error.strerror or error}") from error


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


def _install(archive: Path, releases: Path, lock: int) -> tuple[str, Path]:
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
            _make_programs(target, lock)
            _add_pages(target)
            (target / UNFINISHED).unlink()
        except BaseException:
            # By one step, so that half of it is never taken for a release.
            target.rename(partial)
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return version, target / "venv" / "bin" / "dgpp"


def unpack_proved(archive: Path, target: Path) -> str:
    """`unpack`, with the whole archive held against the digest beside it meanwhile."""
    with ThreadPoolExecutor(1) as beside:
        proving = beside.submit(_prove, archive)
        try:
            version = unpack(archive, target)
        except ReleaseError:
            # That it is another archive says more than what this made of it.
            proving.result()
            raise
        proving.result()
    return version


def _prove(archive: Path) -> None:
    """`archive` against the digest beside it, where there is one. Raises ReleaseError."""
    beside = archive.with_name(f"{archive.name}.sha256")
    if not beside.exists():
        return
    with archive.open("rb") as data:
        found = hashlib.file_digest(data, "sha256").hexdigest()
    if beside.read_text().split()[:1] != [found]:
        raise ReleaseError(f"{archive}: its SHA-256 is {found}, not that of {beside.name}")


def installed(releases: Path) -> list[str]:
    """The versions in `releases`, in order of their names."""
    if not releases.is_dir():
        return []
    return sorted(
        folder.name
        for folder in releases.iterdir()
        if (folder / "venv" / "bin" / "dgpp").exists() and not (folder / UNFINISHED).exists()
    )


def unpack(archive: Path, target: Path) -> str:
    """Unpack `archive` into the new folder `target`, every file as the manifest says; the version.

    Raises ReleaseError naming the file that is not.
    """
    target.mkdir(mode=0o755)
    try:
        with archive.open("rb") as data:
            stream = zstandard.ZstdDecompressor().stream_reader(data)
            with (
                tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK_BYTES) as members,
                ThreadPoolExecutor(1) as hasher,
            ):
                return _take(members, target, hasher)
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise ReleaseError(f"{archive}: not a whole archive: {error}") from error


def _take(members: tarfile.TarFile, target: Path, hasher: Executor) -> str:
    version, expected, left = "", None, MOST_BYTES
    for member in members:
        folder, name = _checked(member)
        if not version:
            version = folder
        if folder != version:
            raise ReleaseError(f"{member.name}: an archive has one folder, dgpp-{version}")
        if member.isdir():
            continue
        left -= member.size
        if left < 0:
            raise ReleaseError(f"{member.name}: over {MOST_BYTES} bytes in all")
        stream = members.extractfile(member)
        assert stream is not None
        if expected is None:
            if name != MANIFEST:
                raise ReleaseError(f"{member.name}: comes before {MANIFEST}")
            expected = _manifest(stream.read(MANIFEST_BYTES))
            continue
        digest = expected.pop(name, None)
        if digest is None:
            raise ReleaseError(f"{member.name}: {MANIFEST} does not name it, or it comes twice")
        if _write(stream, target / name, member.mode, hasher) != digest:
            raise ReleaseError(f"{member.name}: its SHA-256 is not that of {MANIFEST}")
    if expected is None:
        raise ReleaseError(f"no {MANIFEST} in it")
    if expected:
        raise ReleaseError(f"{min(expected)}: {MANIFEST} names it, but it is not there")
    return version


def _checked(member: tarfile.TarInfo) -> tuple[str, str]:
    """The version that the member's folder names, and the member's path in that folder."""
    parts = PurePosixPath(member.name).parts
    found = _FOLDER.fullmatch(parts[0]) if parts else None
    if found is None or ".." in parts or not (member.isdir() or member.isreg()):
        raise ReleaseError(f"{member.name}: not a file of a release")
    return found[1], "/".join(parts[1:])


def _manifest(text: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.decode(errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ReleaseError(f"{MANIFEST}: not a line of it: {line[:100]!r}")
        found[match[2]] = match[1]
    return found


def _write(stream: IO[bytes], file: Path, mode: int, hasher: Executor) -> str:
    """The digest of what was written, made beside the writing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with file.open("xb") as out:
        hashed: Future[None] | None = None
        while data := stream.read(COPY_BYTES):
            if hashed is not None:
                hashed.result()
            hashed = hasher.submit(digest.update, data)
            out.write(data)
        if hashed is not None:
            hashed.result()
    file.chmod(0o755 if mode & 0o100 else 0o644)
    return digest.hexdigest()


def _make_programs(release: Path, lock: int) -> None:
    """An environment of its own, from the release's wheels alone. Modules are compiled by as many
    processes as there are cores, where pip takes one."""
    place = release / "venv"
    venv.create(place, symlinks=True)
    extras = (release / "EXTRAS").read_text().strip() if (release / "EXTRAS").exists() else ""
    # Isolated: what else this machine has is not asked.
    python = [str(place / "bin" / "python"), "-I", "-m"]
    done = _run([*python, "ensurepip", "--default-pip"], lock)
    if done.returncode:
        raise ReleaseError(f"no pip for {place}: {_last(done)}; is python3-venv installed?")
    wheels = ["--no-index", "--find-links", str(release / "wheels")]
    pip = [*python, "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    done = _run([*pip, *wheels, f"dgpp[{extras}]" if extras else "dgpp"], lock)
    if done.returncode:
        number = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ReleaseError(
            f"its wheels do not fit Python {number} on {os.uname().machine}: {_last(done)}"
        )
    # Some packages carry files that are no modules of this Python; pip lets them pass too.
    _run([*python, "compileall", "-qq", "-j", "0", str(place / "lib")], lock)


def _run(command: list[str], lock: int) -> subprocess.CompletedProcess[bytes]:
    """It holds `lock` too: where the install is killed, no other begins before this has ended."""
    return subprocess.run(command, capture_output=True, check=False, pass_fds=(lock,))


def _last(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a program said at its end."""
    return " ".join(done.stderr.decode(errors="replace").strip().splitlines()[-3:])


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
