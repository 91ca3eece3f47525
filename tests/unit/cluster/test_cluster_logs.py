"""Logs of ranks as one; and processes that are never mistaken for others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.cluster.errors import LockedError, RecordError
from dgpp.cluster.logs import merged
from dgpp.cluster.place import Place, deployment_id, locked
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


def stamp(ms: int) -> str:
    return f"2026-11-30T00:00:{ms // 1000:02d}.{ms % 1000:03d}Z"


@given(st.lists(st.lists(st.integers(0, 59_999)).map(sorted), min_size=1, max_size=4))
def test_lines_come_in_order_of_time_and_none_is_lost(moments):
    texts = {
        rank: "".join(f"{stamp(ms)} INFO {rank}.{i}\n" for i, ms in enumerate(mine))
        for rank, mine in enumerate(moments)
    }
    lines = list(merged(texts, named=True))
    assert sorted(lines) == sorted(
        f"[{rank}] {line}" for rank, text in texts.items() for line in text.splitlines()
    )
    assert [line.split(" ", 2)[1] for line in lines] == sorted(
        line.split(" ", 2)[1] for line in lines
    )


def test_a_traceback_stays_with_its_line_and_json_has_times_too():
    first = f"{stamp(5)} ERROR it\nTraceback:\n  here\n{stamp(9)} INFO on\n"
    second = f'{{"time": "{stamp(7)}", "text": "seven"}}\n'
    assert list(merged({0: first, 1: second}, named=False)) == [
        f"{stamp(5)} ERROR it",
        "Traceback:",
        "  here",
        second.strip(),
        f"{stamp(9)} INFO on",
    ]


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def record_of(pid: int, **changed) -> ProcessRecord:
    fields = {
        "rank": 0, "pid": pid, "start_ticks": start_ticks(pid), "boot_id": boot_id(),
        "started": 0.0, "version": "x", "config": "c", "command": (),
    }  # fmt: skip
    return ProcessRecord(**fields | changed)


def test_exactly_the_process_that_was_started_is_signalled(sleeper, tmp_path):
    record = record_of(sleeper.pid)
    write_record(tmp_path / "rank0.json", record)
    assert read_record(tmp_path / "rank0.json") == record
    assert state_of(record) is State.RUNNING
    # The same number at another time, or on another day, is somebody else.
    later = record_of(sleeper.pid, start_ticks=record.start_ticks + 1)
    rebooted = record_of(sleeper.pid, boot_id="0000")
    assert [state_of(later), state_of(rebooted), state_of(None)] == [
        State.ENDED,
        State.REBOOTED,
        State.ABSENT,
    ]
    assert not send(later, signal.SIGKILL)
    assert not send(rebooted, signal.SIGKILL)
    assert sleeper.poll() is None
    assert send(record, signal.SIGKILL)
    # Its remains are no process any more, though nobody has cleared them away.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert state_of(record) is State.ENDED
    assert not send(record, signal.SIGTERM)
    (tmp_path / "rank0.json").write_text("{")
    with pytest.raises(RecordError, match=r"rank0\.json: cannot be read as the record"):
        read_record(tmp_path / "rank0.json")


def test_one_command_at_a_time_and_no_lock_outlives_its_process(tmp_path):
    place = Place(str(tmp_path), str(tmp_path), deployment_id(tmp_path / "a b.json"))
    with (
        locked(place),
        pytest.raises(LockedError, match=rf"process {os.getpid()}\); wait"),
        locked(place),
    ):
        pass
    holder = (
        "import sys; from dgpp.cluster.place import *; from pathlib import Path\n"
        "p = Place(*sys.argv[1:4]); lock = locked(p); lock.__enter__(); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, str(tmp_path), str(tmp_path), place.deployment]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LockedError), locked(place):
            pass
    finally:
        process.kill()
        process.communicate()
    with locked(place):
        pass


def test_deployments_are_told_apart_by_the_place_of_their_file(tmp_path):
    first, second = deployment_id(tmp_path / "a.json"), deployment_id(tmp_path / "b.json")
    assert first != second
    assert len(first) == 16
    assert deployment_id(tmp_path / "sub" / ".." / "a.json") == first
