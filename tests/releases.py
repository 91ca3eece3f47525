"""Archives of releases for tests: some small files, packed as scripts/release.sh does."""

from __future__ import annotations

import hashlib
import io
import tarfile

import zstandard

from dgpp.cluster.release_archive import MANIFEST

FILES = {
    "wheels/a-1-py3-none-any.whl": b"wheel" * 900,
    "docs/read me.md": b"# x\n",
    "run": b"#!x\n",
}


def manifest(files):
    return "".join(f"{hashlib.sha256(d).hexdigest()}  {n}\n" for n, d in files.items()).encode()


def archive(path, members, kind=tarfile.REGTYPE):
    """`members` are names with contents, in order."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.type = kind if name.endswith("odd") else tarfile.REGTYPE
            info.mode = 0o755 if name.endswith("run") else 0o600
            info.linkname = "/etc/passwd"
            tar.addfile(info, io.BytesIO(data))
    path.write_bytes(zstandard.ZstdCompressor().compress(raw.getvalue()))
    return path


def whole(files=FILES, version="1.2.3"):
    folder = f"dgpp-{version}/"
    members = [(folder + MANIFEST, manifest(files))]
    return members + [(folder + name, data) for name, data in files.items()]


def make_programs(release, children):
    """As long as it takes for a file to be there, in place of half a minute."""
    place = release / "venv" / "bin"
    place.mkdir(parents=True)
    (place / "dgpp").write_text("#!x\n")
