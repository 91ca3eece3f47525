"""Figures of the message path; printed, never asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, msgspec, toy_pingpong as toy
from actors.run import run_world
boot = msgspec.msgpack.encode(toy.Boot(sys.argv[2], os.getpid(), 5000, sys.argv[3] == "arrays"))
boots = {"ping": boot, "pong": boot}
sys.exit(run_world(toy.topology(), boots, placement=sys.argv[1]))
"""


@pytest.mark.bench
@pytest.mark.parametrize("arrays", ["none", "arrays"])
@pytest.mark.parametrize("placement", ["processes", "inline"])
def test_round_trip(tmp_path: Path, placement: str, arrays: str) -> None:
    report = tmp_path / "report"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, placement, str(report), arrays],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(f"\nround trip of 64 bytes, {placement}, arrays {arrays}: {report.read_text()}")
