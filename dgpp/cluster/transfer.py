"""Files to another node, by rsync where both sides have it, else by tar, over the system's ssh."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import msgspec

from dgpp.cluster.errors import DiskFullError, TransferError
from dgpp.cluster.node import RemoteNode, remedy_of
from dgpp.parent import ending_with_this

STALL_S = 120
"""A transfer that does not move for so long is ended."""
_COUNT = re.compile(rb"([\d,]+) +\d+%")
"""What rsync says of its progress: bytes that went, and a share."""
_under_way: set[subprocess.Popen[bytes]] = set()
_FULL = "No space left on device"
NO_ROOM = "make room there, or give that node another HF_HUB_CACHE (DGPP_NODE_OVERRIDES)"
_AGAIN = "the same command goes on from there"

Moved = Callable[[int], object]


def choose(programs: Sequence[str]) -> str:
    """rsync or tar: what this machine and one that has `programs` have both. Raises
    TransferError."""
    for name in ("rsync", "tar"):
        if name in programs and shutil.which(name):
            return name
    raise TransferError("neither rsync nor tar on both machines: install one of them there")


class Parcel(msgspec.Struct, frozen=True):
    """The files `names` of `directory` for `folder` of another node, links as what they link to."""

    directory: Path
    names: tuple[str, ...]
    folder: str


def send(
    node: RemoteNode, parcel: Parcel, programs: Sequence[str], moved: Moved = lambda count: None
) -> None:
    """Copy `parcel` to `node`, which has `programs`. `moved` hears how many bytes have gone, where
    that can be known.

    rsync goes on within a file that is there in part, tar with the file. Raises TransferError, or
    DiskFullError where there is no room left.
    """
    try:
        if choose(programs) == "rsync":
            _by_rsync(node, parcel, moved)
        else:
            _by_tar(node, parcel)
    except OSError as error:
        raise TransferError(f"{node.name}: {error.filename}: {error.strerror}") from error


def end_all() -> None:
    """End all that is `running` in this process; each is then a transfer that broke off."""
    for process in list(_under_way):
        with contextlib.suppress(ProcessLookupError):
            process.terminate()


@contextmanager
def running(command: Sequence[str], **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    """It does not outlive this process, however that ends: the next one would send as well."""
    with subprocess.Popen(ending_with_this(command), **pipes) as process:
        _under_way.add(process)
        try:
            yield process
        finally:
            _under_way.discard(process)


def _by_rsync(node: RemoteNode, parcel: Parcel, moved: Moved) -> None:
    host = f"[{node.host}]" if ":" in node.host else node.host
    target = f"{node.user}@{host}" if node.user else host
    options = ["--copy-links", "--inplace", "--append", "--files-from=-", "--from0"]
    options += ["--info=progress2", "--outbuf=L"]
    # Paths go to the other side as they are, past its shell.
    options += ["--protect-args", f"--timeout={STALL_S}", "-e", _for_rsync(node.ssh)]
    command = ["rsync", *options, "--", f"{parcel.directory}/", f"{target}:{parcel.folder}/"]
    with (
        tempfile.TemporaryFile() as said,
        running(command, stdin=PIPE, stdout=PIPE, stderr=said) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as listed:
            listed.write("\0".join(parcel.names).encode())
        while data := os.read(process.stdout.fileno(), 4096):
            for count in _COUNT.findall(data):
                moved(int(count.replace(b",", b"")))
        status = process.wait()
        said.seek(0)
        if status:
            raise _failure(node, "rsync", status, said.read())


def _by_tar(node: RemoteNode, parcel: Parcel) -> None:
    pack = ["tar", "-C", str(parcel.directory), "-chf", "-"]
    pack += [f"./{name}" for name in parcel.names]
    unpack = node.command(["tar", "-C", parcel.folder, "-xf", "-"])
    with running(pack, stdout=PIPE, stderr=PIPE) as packed:
        assert packed.stdout is not None
        assert packed.stderr is not None
        with running(unpack, stdin=packed.stdout, stderr=PIPE) as unpacked:
            told = unpacked.communicate()[1]
        # Where the other side has ended, nobody reads on.
        packed.stdout.close()
        said = packed.stderr.read()
    if unpacked.returncode:
        raise _failure(node, "tar", unpacked.returncode, told)
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
