"""Two hundred starts and stops over ssh leave both machines as they were."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest
from launching import Launcher
from leftovers import Leftovers
from serving import ROOT
from sshd import Machines

from dgpp.cli.settings import load_settings
from dgpp.cluster.deployment import Access, Deployment
from dgpp.cluster.down import bring_down
from dgpp.cluster.interruption import StoppedError
from dgpp.cluster.record import read_record, send
from dgpp.cluster.up import Up, bring_up
from dgpp.config.document import Override

CYCLES = int(os.environ.get("DGPP_TEST_CYCLES", "200"))
WARM = 8
"""After so many every kind of end has been met twice, and old logs have their names."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """All that is written and started is under one folder."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("DGPP_ENV_FILE", raising=False)
    machines = Machines(tmp_path / "ssh")
    yield Launcher(machines, tmp_path)
    machines.close()


def one_cycle(launcher, number):
    """Ends in order (every fourth time with a process for each actor), by the death of a rank, or
    before it serves."""
    placement = "inline" if number % 4 else "processes"
    settings = load_settings(launcher.config, [Override("engine.placement", placement, "test")])
    access = Access(ssh_config=str(launcher.machines.config))
    deployment = Deployment(launcher.config, settings, access)
    said = []
    interrupt = threading.Timer(number * 37 % 200 / 100, signal.raise_signal, [signal.SIGINT])
    try:
        if number % 4 == 3:
            interrupt.start()
        bring_up(deployment, Up(checks=False, timeout_s=300), said.append)
        if number % 4 == 2:
            victim = number // 4 % 2
            homes = [launcher.home, *launcher.machines.homes.values()]
            record = deployment.place.record(victim).relative_to(launcher.home)
            assert send(read_record(homes[victim] / record), signal.SIGKILL)
    except StoppedError:
        assert number % 4 == 3
    finally:
        interrupt.cancel()
        if interrupt.ident is not None:
            interrupt.join()
        orderly = bring_down(deployment, said.append)
        deployment.close()
    assert orderly or number % 4 == 2, said


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_nothing_is_left_of_two_hundred_starts_and_stops(here, tmp_path):
    looked_for = Leftovers(tmp_path, [here.port, here.journal])
    for number in range(WARM):
        one_cycle(here, number)
    before, begun = looked_for.settled({}), time.monotonic()
    assert (before["ports"], before["locks"], before["segments"]) == ([], [], [])
    # The ssh server is the test's own.
    assert before["processes"] == ["sshd"]
    for number in range(WARM, CYCLES):
        one_cycle(here, number)
        assert looked_for.settled(before) == before, number
    took = time.monotonic() - begun
    sys.stdout.write(f"{CYCLES} cycles, the last {CYCLES - WARM} in {took:.0f} s\n")
