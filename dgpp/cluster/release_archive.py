"""Archives of releases: opened, held against their digests, unpacked file by file."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import zstandard

from dgpp.cluster.errors import ReleaseError

MANIFEST = "MANIFEST.sha256"
MANIFEST_BYTES = 16 << 20
MOST_BYTES = 64 << 30
"""No archive unpacks to more."""
COPY_BYTES = 256 << 10
DAMAGED = "it is damaged, or no release: copy it here once more"
"""What to do about an archive that is not as it must be."""
_BLOCK_BYTES = 64 << 10
_LINE = re.compile(r"([0-9a-f]{64})  ([^\0\n]+)")
_FOLDER = re.compile(r"dgpp-([A-Za-z0-9][A-Za-z0-9_.+-]*)")


def prove(archive: Path) -> None:
    """`archive` against the digest beside it, where there is one. Raises ReleaseError."""
    beside = archive.with_name(f"{archive.name}.sha256")
    if not beside.exists():
        return
    with archive.open("rb") as data:
        found = hashlib.file_digest(data, "sha256").hexdigest()
    if beside.read_text(errors="replace").split()[:1] != [found]:
        raise ReleaseError(
            f"{archive}: its SHA-256 is {found}, not that of {beside.name}: one of them is damaged "
            "or another version's, copy both here once more"
        )


@contextmanager
def opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """The members of `archive`, to be read in their order. Raises ReleaseError, OSError; also what
    is raised over a member names the archive."""
    try:
        with archive.open("rb") as data:
            stream = zstandard.ZstdDecompressor().stream_reader(data)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK_BYTES) as members:
                yield members
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise ReleaseError(f"{archive}: not a whole archive: {error}; {DAMAGED}") from error
    except ReleaseError as error:
        raise ReleaseError(f"{archive}: {error}; {DAMAGED}") from error


def unpack(archive: Path, target: Path) -> str:
    """Unpack `archive` into the new folder `target`, every file as the manifest says; the version.

    Raises ReleaseError naming the file that is not.
    """
    target.mkdir(mode=0o755)
    with opened(archive) as members, ThreadPoolExecutor(1) as hasher:
        return _take(members, target, hasher)


def _take(members: tarfile.TarFile, target: Path, hasher: Executor) -> str:
    version, expected, left = "", None, MOST_BYTES
    for member in members:
        folder, name = checked(member)
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


def checked(member: tarfile.TarInfo) -> tuple[str, str]:
    """The version that the member's folder names, and the member's path in that folder. Raises
    ReleaseError."""
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
