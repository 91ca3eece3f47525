"""What a node does for the launcher: `dgpp agent` reads requests and prints the answers.

It runs while the launcher asks. All it knows lies in the deployment's folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import msgspec

from dgpp.checkpoint.receive import adopt, drop, look, open_staging
from dgpp.cluster.errors import RecordError
from dgpp.cluster.launch import clear, reap, start
from dgpp.cluster.messages import (
    BLOCK_BYTES,
    REQUEST_BYTES,
    TAIL_BYTES,
    Adopt,
    Answer,
    Clear,
    Drop,
    Examine,
    Hold,
    List,
    Look,
    Operations,
    Request,
    Signal,
    Start,
    Survey,
)
from dgpp.cluster.place import DEPLOYMENTS
from dgpp.cluster.record import ProcessRecord, State, read_record, send, state_of
from dgpp.config.version import version
from dgpp.errors import DgppError

_REQUEST: type[Request] = Request  # type: ignore[assignment]


_ELSEWHERE = "name a folder that this user can write: DGPP_LOG_DIR, DGPP_STAGE_DIR"
_REMEDIES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room within this user's quota",
    errno.EACCES: _ELSEWHERE,
    errno.EROFS: _ELSEWHERE,
}


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests, a line each, until there are no more."""
    try:
        while line := requests.readline(REQUEST_BYTES + 1):
            answers.write(answer_bytes(line) + b"\n")
            answers.flush()
            if not line.endswith(b"\n"):
                return
    except BrokenPipeError:
        return


def answer_bytes(line: bytes) -> bytes:
    """The answer to one encoded request, encoded; errors are answers too."""
    try:
        request = msgspec.json.decode(line, type=_REQUEST)
    except msgspec.DecodeError as error:
        return msgspec.json.encode(_answer(error=f"this dgpp does not understand it: {error}"))
    return msgspec.json.encode(answer(request))


def answer(request: Request) -> Answer:
    """Do what is asked, here."""
    try:
        return _do(request)
    except DgppError as error:
        return _answer(error=str(error))
    except OSError as error:
        return _answer(error=explained(error))


def explained(error: OSError) -> str:
    """Which file, what is wrong with it, and what mends it."""
    remedy = _REMEDIES.get(error.errno or 0, "")
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}" + (f" ({remedy})" if remedy else "")


def _answer(**fields: object) -> Answer:
    return Answer(version=version(), now=time.time(), **fields)  # type: ignore[arg-type]


def _do(request: Request) -> Answer:
    match request:
        case Look():
            return _look(request)
        case Start():
            return _start(request)
        case Signal():
            record = read_record(request.place.record(request.rank))
            return _answer(done=record is not None and send(record, request.number))
        case Operations():
            return _operations(request)
        case Clear():
            clear(request.place, request.rank)
            return _answer(done=True)
        case List():
            return _list(request)
        case Examine():
            # It brings NumPy with it, which the other questions need not wait for.
            from dgpp.cluster.examine import examine

            return _answer(findings=tuple(examine(request)))
        case Survey():
            from dgpp.cluster.survey import survey

            return _answer(facts=survey(request))
        case Hold() | Adopt() | Drop():
            return _copy(request)


def _copy(request: Hold | Adopt | Drop) -> Answer:
    match request:
        case Hold():
            if request.open:
                open_staging(request.copy)
            return _answer(held=look(request.copy, request.depth))
        case Adopt():
            return _answer(wrong=adopt(request.copy, main=request.main))
        case Drop():
            drop(request.copy)
            return _answer(done=True)


def _known(file: Path) -> tuple[State, ProcessRecord | None, str]:
    """How the rank is that the record `file` names, and why nothing is known of it."""
    try:
        record = read_record(file)
    except RecordError as error:
        return State.UNREADABLE, None, str(error)
    return state_of(record), record, ""


def _look(request: Look) -> Answer:
    reap()
    file = request.place.log(request.rank)
    text, offset = b"", max(0, request.offset)
    if file.exists():
        with file.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            # A log that is shorter than what was read of it is another one.
            offset = max(0, size + request.offset) if request.offset < 0 else min(offset, size)
            log.seek(offset)
            text = log.read(TAIL_BYTES)
    # After the log, so that an end is never seen before what was said at it.
    state, record, unknown = _known(request.place.record(request.rank))
    return _answer(
        state=state,
        record=record,
        unknown=unknown,
        text=text.decode(errors="replace"),
        offset=offset + len(text),
    )


def _start(request: Start) -> Answer:
    known = read_record(request.place.record(request.rank))
    if state_of(known) is State.RUNNING:
        error = f"rank {request.rank} runs already"
        return _answer(error=error, state=State.RUNNING, record=known)
    return _answer(state=State.RUNNING, record=start(request))


def _operations(request: Operations) -> Answer:
    """The stream and what it went on from, as one."""
    file = request.place.operations(request.rank)
    parts = [part for part in (Path(f"{file}.1"), file) if part.exists()]
    if request.block >= 0:
        block = next(islice(_blocks(parts), request.block, None), b"")
        return _answer(done=bool(parts), text=block.decode(errors="replace"))
    digests, size = [], 0
    for block in _blocks(parts):
        digests.append(hashlib.sha256(block).hexdigest())
        size += len(block)
    return _answer(done=bool(parts), digests=tuple(digests), size=size)


def _blocks(parts: list[Path]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        with part.open("rb") as stream:
            while data := stream.read(BLOCK_BYTES - len(rest)):
                rest += data
                if len(rest) == BLOCK_BYTES:
                    yield rest
                    rest = b""
    if rest:
        yield rest


def _list(request: List) -> Answer:
    folder = Path(request.log_dir).expanduser() / DEPLOYMENTS
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        state, record, unknown = _known(place / f"rank{request.rank}.json")
        if state is not State.ABSENT:
            found.append((place.name, state, record, unknown))
    return _answer(deployments=tuple(found))
