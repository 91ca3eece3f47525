"""How fast `dgpp install` proves and unpacks an archive, in MB of payload per second.

    python scripts/bench_install.py [ARCHIVE] [--rounds 5] [--folder DIR]

Without ARCHIVE one is made as a release is: `--megabytes` of wheels, which do not compress, and
some text. What is timed is what `dgpp install` does before it makes programs: the archive held
against the SHA-256 beside it, every file unpacked and held against the manifest. The CPU time says
what a machine without other work would need; a plain write of the same bytes stands beside it.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import zstandard
from command_line import Options, ended

from dgpp.cluster.release import unpack_proved
from dgpp.cluster.release_archive import MANIFEST

MEGA = 1_000_000
WHEEL = 8 * MEGA
"""Bytes of one wheel, on average."""


def make_archive(file: Path, megabytes: int) -> None:
    """A release as scripts/release.sh packs it, with random bytes for wheels."""
    noise = random.Random(0)  # as incompressible as a wheel, the same each time
    names = [f"wheels/part{number}.whl" for number in range(max(1, megabytes * MEGA // WHEEL))]
    files = {name: noise.randbytes(WHEEL) for name in names}
    files |= {f"docs/{n}.md": b"A page of documentation.\n" * 400 for n in range(100)}
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()]
    members = {MANIFEST: "".join(lines).encode()} | files
    packer = zstandard.ZstdCompressor(level=3, threads=-1, write_checksum=True)
    with (
        file.open("wb") as out,
        packer.stream_writer(out) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, data in members.items():
            info = tarfile.TarInfo(f"dgpp-0.0.0/{name}")
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    file.with_name(f"{file.name}.sha256").write_text(f"{digest}  {file.name}\n")


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def payload(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def plain_write(file: Path, size: int) -> None:
    """`size` bytes as a program writes them that does nothing else."""
    data = bytes(MEGA)
    with file.open("wb") as out:
        for _ in range(size // MEGA):
            out.write(data)


def main() -> None:
    parser = Options(description=__doc__.splitlines()[0])
    parser.add_argument("archive", nargs="?", type=Path)
    parser.add_number("--rounds", 5)
    parser.add_number("--megabytes", 400)
    parser.add_argument("--folder", type=Path, default=None, help="where to unpack")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=told.folder, prefix="bench-install-") as name:
        folder = Path(name)
        archive = told.archive or folder / "dgpp-0.0.0.tar.zst"
        if told.archive is None:
            make_archive(archive, told.megabytes)
        sys.stdout.write(f"{archive.name}: {archive.stat().st_size / MEGA:.0f} MB\n")
        sys.stdout.write("round   seconds   CPU seconds   MB/s of payload   plain write MB/s\n")
        rates = []
        for number in range(told.rounds):
            target = folder / "new"
            used = time.process_time()
            took = timed(lambda: unpack_proved(archive, target))  # noqa: B023 - runs at once
            used = time.process_time() - used
            size = payload(target)
            shutil.rmtree(target)
            writing = timed(lambda: plain_write(folder / "plain", size))  # noqa: B023
            rates.append(size / MEGA / took)
            sys.stdout.write(
                f"{number:5}  {took:8.2f}  {used:12.2f}  {rates[-1]:16.0f}"
                f"  {size / MEGA / writing:17.0f}\n"
            )
        sys.stdout.write(
            f"median {sorted(rates)[len(rates) // 2]:.0f} MB/s, best {max(rates):.0f}\n"
        )


if __name__ == "__main__":
    ended(main)
