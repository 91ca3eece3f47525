"""What a node does for the launcher: `dgpp agent` reads a request and prints the answer.

It runs only while it answers. All it knows lies in the deployment's folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path

import msgspec

from dgpp.cluster.examine import examine
from dgpp.cluster.messages import (
    TAIL_BYTES,
    Answer,
    Examine,
    List,
    Look,
    Operations,
    Request,
    Signal,
    Start,
)
from dgpp.cluster.place import DEPLOYMENTS
from dgpp.cluster.record import (
    ProcessRecord,
    State,
    boot_id,
    read_record,
    send,
    start_ticks,
    state_of,
    write_record,
)
from dgpp.config.version import version
from dgpp.errors import DgppError

_REQUEST: type[Request] = Request  # type: ignore[assignment]


def answer_bytes(data: bytes) -> bytes:
    """The answer to the encoded request `data`, encoded; errors are answers too."""
    try:
        request = msgspec.json.decode(data, type=_REQUEST)
    except msgspec.DecodeError as error:
        return msgspec.json.encode(_answer(error=f"this dgpp does not understand it: {error}"))
    return msgspec.json.encode(answer(request))


def answer(request: Request) -> Answer:
    """Do what is asked, here."""
    try:
        return _do(request)
    except (OSError, DgppError) as error:
        return _answer(error=str(error))


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
        case List():
            return _list(request)
        case Examine():
            return _answer(findings=tuple(examine(request)))


def _look(request: Look) -> Answer:
    record = read_record(request.place.record(request.rank))
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
    return _answer(
        state=state_of(record),
        record=record,
        text=text.decode(errors="replace"),
        offset=offset + len(text),
    )


def _start(request: Start) -> Answer:
    place, rank = request.place, request.rank
    known = read_record(place.record(rank))
    if state_of(known) is State.RUNNING:
        return _answer(error=f"rank {rank} runs already", state=State.RUNNING, record=known)
    for folder in (place.logs, place.stage):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in (place.operations(rank), Path(f"{place.operations(rank)}.1")):
        old.unlink(missing_ok=True)
    config = _stage(place.stage / f"rank{rank}.config.json", request.config)
    program = (os.path.expanduser(word) for word in request.command)  # noqa: PTH111 - words as well
    command = [*program, "run", str(config), "--set", f"paths.log_dir={place.logs}"]
    if request.apart:
        command += ["--rank", str(rank)]
    if request.token:
        token = _stage(place.stage / f"rank{rank}.token", request.token)
        command += ["--set", f"engine.cluster_token_file={token}"]
    # What the site says is in the settings already; a file of this node must not say it again.
    nothing = _stage(place.stage / "site.env", "")
    environment = os.environ | request.environment | {"DGPP_ENV_FILE": str(nothing)}
    log = place.log(rank)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=place.stage,
            env=environment,
            start_new_session=True,
        )
    record = ProcessRecord(
        rank,
        process.pid,
        start_ticks(process.pid),
        boot_id(),
        time.time(),
        version(),
        request.source,
        tuple(command),
    )
    write_record(place.record(rank), record)
    return _answer(state=State.RUNNING, record=record)


def _stage(file: Path, text: str) -> Path:
    """`text` in `file`, which nobody else may read."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    return file


def _operations(request: Operations) -> Answer:
    digest, size = hashlib.sha256(), 0
    file = request.place.operations(request.rank)
    parts = [part for part in (Path(f"{file}.1"), file) if part.exists()]
    for part in parts:
        with part.open("rb") as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
                size += len(data)
    return _answer(done=bool(parts), digest=digest.hexdigest(), size=size)


def _list(request: List) -> Answer:
    folder = Path(request.log_dir).expanduser() / DEPLOYMENTS
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        record = read_record(place / f"rank{request.rank}.json")
        if record is not None:
            found.append((place.name, state_of(record), record))
    return _answer(deployments=tuple(found))
