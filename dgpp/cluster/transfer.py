"""Files to another node, by rsync where both sides have it, else by tar, over the system's ssh."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dgpp.cluster.errors import DiskFullError, TransferError
from dgpp.cluster.node import RemoteNode, remedy_of

STALL_S = 120
"""A transfer that does not move for so long is ended."""
_FULL = "No space left on device"
NO_ROOM = "make room there, or give that node another HF_HUB_CACHE (DGPP_NODE_OVERRIDES)"
_AGAIN = "the same command goes on from there"


def choose(programs: Sequence[str]) -> str:
    """rsync or tar: what this machine and one that has `programs` have both. Raises
    TransferError."""
    for name in ("rsync", "tar"):
        if name in programs and shutil.which(name):
            return name
    raise TransferError("neither rsync nor tar on both machines: install one of them there")


def send(
    node: RemoteNode, directory: Path, names: Sequence[str], folder: str, programs: Sequence[str]
) -> None:
    """Copy the files `names` of `directory` into `folder` of `node`, links as what they link to.

    rsync goes on within a file that is there in part, tar with the file. Raises TransferError, or
    DiskFullError where there is no room left.
    """
    try:
        if choose(programs) == "rsync":
            _by_rsync(node, directory, names, folder)
        else:
            _by_tar(node, directory, names, folder)
    except OSError as error:
        raise TransferError(f"{node.name}: {error.filename}: {error.strerror}") from error


def _by_rsync(node: RemoteNode, directory: Path, names: Sequence[str], folder: str) -> None:
    host = f"[{node.host}]" if ":" in node.host else node.host
    target = f"{node.user}@{host}" if node.user else host
    options = ["--copy-links", "--inplace", "--append", "--files-from=-", "--from0"]
    # Paths go to the other side as they are, past its shell.
    options += ["--protect-args", f"--timeout={STALL_S}", "-e", _for_rsync(node.ssh)]
    command = ["rsync", *options, "--", f"{directory}/", f"{target}:{folder}/"]
    done = subprocess.run(
        command, input="\0".join(names).encode(), capture_output=True, check=False
    )
    if done.returncode:
        raise _failure(node, "rsync", done.returncode, done.stderr)


def _by_tar(node: RemoteNode, directory: Path, names: Sequence[str], folder: str) -> None:
    pack = ["tar", "-C", str(directory), "-chf", "-", *(f"./{name}" for name in names)]
    unpack = node.command(["tar", "-C", folder, "-xf", "-"])
    with subprocess.Popen(pack, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as packed:
        assert packed.stdout is not None
        assert packed.stderr is not None
        done = subprocess.run(unpack, stdin=packed.stdout, capture_output=True, check=False)
        # Where the other side has ended, nobody reads on.
        packed.stdout.close()
        said = packed.stderr.read()
    if done.returncode:
        raise _failure(node, "tar", done.returncode, done.stderr)
    if packed.returncode:
        raise _failure(node, "tar", packed.returncode, said)


def _for_rsync(words: Sequence[str]) -> str:
    """`words` as rsync's -e takes them apart: a quote within quotes is doubled."""
    plain = shlex.quote
    return " ".join(
        word if plain(word) == word else "'" + word.replace("'", "''") + "'" for word in words
    )


def _failure(node: RemoteNode, program: str, status: int, stderr: bytes) -> TransferError:
    said = stderr.decode(errors="replace")
    if _FULL in said:
        return DiskFullError(
            f"{node.name}: its disk became full, what was sent is deleted again: {NO_ROOM}"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = lines[0] if lines else f"status {status}"
    remedy = remedy_of(said) or f"look at that node and its network; {_AGAIN}"
    return TransferError(f"{node.name}: {program} broke off: {first} ({remedy})")
