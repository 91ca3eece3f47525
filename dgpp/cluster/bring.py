"""This very dgpp on a node that has none: the checkout's files, stamped with its version."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from dgpp.cluster.errors import ClusterError
from dgpp.cluster.node import RemoteNode, remedy_of
from dgpp.cluster.transfer import running

INSTALL_S = 1800
"""Some hundred megabytes of packages on a slow line."""
PREPARE = ("scripts/setup.sh", "--prepare")
_UNPACK = """
if [ -e "$1/.git" ]; then
    echo "$1 is a checkout of its own there: bring it to this version"
    exit 1
fi
mkdir -p "$1" && tar -C "$1" -xf -
"""
# Nobody ends what a closed connection leaves there, but whoever reads of its standard input.
_PREPARE = """
exec 3<&0
"$@" </dev/null 3<&- & made=$!
{ cat <&3; kill "$made"; } >/dev/null 2>&1 & watch=$!
wait "$made"; status=$?
kill "$watch"
exit "$status"
"""


def lets_in(node: RemoteNode) -> bool:
    """Whether ssh gets there, whatever is installed."""
    done = subprocess.run(node.command(["true"]), capture_output=True, check=False)
    return done.returncode == 0


def bring(node: RemoteNode, root: Path, version: str) -> None:
    """Copy the files that git knows of the checkout `root` to the same folder of `node`, and make
    them a virtual environment there. Raises ClusterError with what the node said.

    What is copied has no history to ask, so that `version` is written into it.
    """
    unpack = node.command(["sh", "-c", _UNPACK, "sh", str(root)])
    with running(
        unpack, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as there:
        assert there.stdin is not None
        assert there.stdout is not None
        try:
            _pack(root, version, there.stdin)
            there.stdin.close()
        except BrokenPipeError:
            pass  # What it said tells why.
        said = there.stdout.read().decode(errors="replace")
    if there.returncode:
        raise _failure(node, f"copying dgpp to {root}", said)
    prepare(node, root)


def prepare(node: RemoteNode, root: Path) -> None:
    """Make the checkout `root` of `node` a virtual environment. What this starts there ends with
    the connection, also where this process is killed. Raises ClusterError."""
    command = node.command(["sh", "-c", _PREPARE, "sh", f"{root}/{PREPARE[0]}", PREPARE[1]])
    with (
        tempfile.TemporaryFile() as told,
        running(command, stdin=subprocess.PIPE, stdout=told, stderr=told) as there,
    ):
        try:
            there.wait(INSTALL_S)
        except subprocess.TimeoutExpired:
            there.kill()
            raise ClusterError(
                f"{node.name}: installing dgpp took more than {INSTALL_S} s; run "
                f"{root}/{PREPARE[0]} {PREPARE[1]} there and see"
            ) from None
        told.seek(0)
        said = told.read().decode(errors="replace")
    if there.returncode:
        raise _failure(node, "installing dgpp", said)


def _failure(node: RemoteNode, what: str, said: str) -> ClusterError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    remedy = remedy_of(said) or "mend it there; the same command goes on"
    return ClusterError(f"{node.name}: {what}: {'; '.join(lines[-3:]) or 'failed'} ({remedy})")


def _pack(root: Path, version: str, out: IO[bytes]) -> None:
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True
    )
    names = [name for name in listed.stdout.decode().split("\0") if name]
    with tarfile.open(fileobj=out, mode="w|") as archive:
        for name in names:
            file = root / name
            if name == "pyproject.toml":
                text = re.sub(
                    r'^version = ".*"$', f'version = "{version}"', file.read_text(), flags=re.M
                ).encode()
                info = archive.gettarinfo(str(file), name)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text))
            elif file.is_symlink() or file.is_file():
                archive.add(file, name, recursive=False)
