"""The process that runs a rank, remembered so that no other is ever taken for it."""

from __future__ import annotations

import contextlib
import os
import signal
from enum import StrEnum
from pathlib import Path

import msgspec

from dgpp.cluster.errors import RecordError
from dgpp.cluster.place import named

_START_FIELD = 19
"""Where /proc/PID/stat has the start time, counted after the command's closing bracket."""


class State(StrEnum):
    """RUNNING as it was started; ENDED, or never started (ABSENT); REBOOTED: its machine has
    started anew since; UNREADABLE: what was remembered of it says nothing."""

    RUNNING = "running"
    ENDED = "ended"
    REBOOTED = "ended with its machine"
    ABSENT = "not started"
    UNREADABLE = "not known"


class ProcessRecord(msgspec.Struct, frozen=True):
    """`pid` since `start_ticks` after the boot `boot_id`; `started` is seconds since 1970. `run` is
    one for all ranks that were started together."""

    rank: int
    pid: int
    start_ticks: int
    boot_id: str
    started: float
    version: str
    config: str
    command: tuple[str, ...]
    run: str = ""

    @property
    def settings(self) -> Path | None:
        """The file of settings that it was started with, wherever that was staged."""
        words = (Path(word) for word in self.command)
        return next((w for w in words if w.name == f"rank{self.rank}.config.json"), None)


def boot_id() -> str:
    """Another one after every start of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int:
    """When process `pid` started, in clock ticks since boot; 0 where there is no such process, or
    only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[_START_FIELD])


def read_record(file: Path) -> ProcessRecord | None:
    """None where there is none. Raises RecordError where it is not readable, or makes no sense."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=ProcessRecord)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        # A rank's command names the deployment, as the folder of the record does.
        raise RecordError(
            f"{file}: cannot be read as the record of a process ({why}), and its rank may run: "
            f"`pgrep -af {file.parent.name}` shows it; end it, then remove that file"
        ) from None


def write_record(file: Path, record: ProcessRecord) -> None:
    """Whole or not at all, a power cut after it included."""
    fresh = file.with_suffix(".new")
    try:
        with named(file), fresh.open("wb") as out:
            out.write(msgspec.json.encode(record))
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def state_of(record: ProcessRecord | None) -> State:
    if record is None:
        return State.ABSENT
    if record.boot_id != boot_id():
        return State.REBOOTED
    return State.RUNNING if start_ticks(record.pid) == record.start_ticks else State.ENDED


def send(record: ProcessRecord, number: int) -> bool:
    """Signal exactly the process that `record` names; False where it is gone.

    A process is held by its pidfd while its start is compared, so that no other can take its
    number in between.
    """
    try:
        handle = os.pidfd_open(record.pid)
    except OSError:
        return False
    try:
        if state_of(record) is not State.RUNNING:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
            return True
        return False
    finally:
        os.close(handle)
