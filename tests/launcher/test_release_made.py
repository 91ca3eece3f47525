"""A release from a checkout to a command that runs, as on a machine without a network."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
import zstandard
from serving import ROOT

from dgpp.cluster.release import install


def call(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


@pytest.fixture
def tree(tmp_path):
    """A checkout in which something was changed."""
    folder = tmp_path / "tree"
    assert call("git", "clone", "-q", str(ROOT), str(folder)).returncode == 0
    sha = call("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD").stdout.strip()
    with (folder / "README.md").open("a") as readme:
        readme.write("changed\n")
    return folder, f"0.1.0+g{sha}.dirty"


def pack(tree, out):
    number = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = ("--platform", platform.machine(), "--python", number, "--with", sys.executable)
    done = call(str(tree / "scripts" / "release.sh"), *wanted, "--out", str(out))
    if done.returncode and "no wheels for" in done.stderr:
        pytest.skip(f"the wheels of dgpp's requirements cannot be downloaded: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_release_is_stamped_and_runs_where_it_is_installed(tree, tmp_path):
    folder, version = tree
    pack(folder, tmp_path / "out")
    archive = tmp_path / "out" / f"dgpp-{version}.tar.zst"
    assert archive.with_name(f"{archive.name}.sha256").exists()
    names, metadata = [], ""
    with (
        archive.open("rb") as data,
        zstandard.ZstdDecompressor().stream_reader(data) as stream,
        tarfile.open(fileobj=stream, mode="r|") as members,
    ):
        for member in members:
            names.append(member.name)
            if Path(member.name).name.startswith("dgpp-") and member.name.endswith(".whl"):
                wheel = zipfile.ZipFile(BytesIO(members.extractfile(member).read()))
                (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
                metadata = wheel.read(name).decode()
    assert names[0] == f"dgpp-{version}/MANIFEST.sha256"
    assert f"dgpp-{version}/deploy/systemd/dgpp@.service" in names
    assert f"\nVersion: {version}\n" in metadata
    found, program = install(archive, tmp_path / "releases")
    assert (found, program) == (version, tmp_path / "releases" / version / "venv/bin/dgpp")
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    said = call(str(program), "--version", env=bare, cwd=tmp_path)
    assert (said.returncode, said.stdout) == (0, f"{version}\n")
    listed = call(
        str(program), "releases", env=bare | {"DGPP_RELEASE_DIR": str(tmp_path / "releases")}
    )
    assert listed.stdout == f"{version}\n"
