"""The launcher between machines with networks of their own: what a cable or a firewall can do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime

import pytest
from launching import Launcher, gone
from netns import NetworkedMachines

from dgpp.cluster.down import ALONE_S
from dgpp.cluster.node import ALIVE_S, ALIVE_TIMES, CONNECT_S

SLOW_S = 15
"""What starting Python a few times may take on a machine that does other things too."""


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    found = NetworkedMachines(tmp_path_factory.mktemp("machines") / "net")
    yield found
    found.close()


@pytest.fixture
def launcher(machines, tmp_path):
    found = Launcher(machines, tmp_path, placement="inline")
    yield found
    machines.mend()
    found.kill_all()


def fetch(launcher, address, path):
    script = (
        f"import urllib.request as u; print(u.urlopen('http://{address}{path}').read().decode())"
    )
    command = [*launcher.machines.here, sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def test_a_node_without_its_cable_is_named(launcher, machines):
    assert launcher.run("status")[0] == 3
    machines.pull_cable()
    begun = time.monotonic()
    status, said = launcher.run("status")
    assert time.monotonic() - begun < CONNECT_S + SLOW_S
    assert status == 1
    assert "rank 0 at 10.77.0.1: not started" in said
    assert "rank 1 at 10.77.0.2: ssh: connect to host 10.77.0.2 port 22: " in said
    assert "(it is off, or its network is down)" in said or "a firewall is between" in said


@pytest.mark.long
def test_two_machines_serve_with_the_same_ports(launcher):
    launcher.document["ports"]["metrics"] = launcher.metrics
    launcher.document["http"] |= {"bind_host": "0.0.0.0", "insecure_no_auth": True}
    launcher.write()
    status, said = launcher.run("up")
    assert status == 0, said
    assert json.loads(fetch(launcher, f"10.77.0.1:{launcher.port}", "/health"))["status"] == "ok"
    peer = fetch(launcher, f"10.77.0.2:{launcher.metrics}", "/metrics/prometheus")
    assert 'rank="1"' in peer
    # What another deployment has taken is looked for on the node whose port it is.
    other = Launcher(launcher.machines, launcher.config.parent, name="other")
    other.document = launcher.document
    other.write()
    status, said = other.run("doctor")
    assert status == 1
    assert "rank 1 at 10.77.0.2\n  ok" in said
    named = f"ports.metrics: cannot listen on 0.0.0.0:{launcher.metrics}: Address already in use"
    assert f"error    {named}" in said
    status, said = launcher.run("down")
    assert status == 0, said
    assert "op streams: identical across 2 ranks" in said


@pytest.mark.long
def test_a_firewall_that_drops_is_named_in_time(launcher, machines):
    machines.drop()
    for verb in ("up", "doctor", "status", "down"):
        begun = time.monotonic()
        status, said = launcher.run(verb)
        assert time.monotonic() - begun < CONNECT_S + SLOW_S
        assert status == 1
        assert "rank 1 at 10.77.0.2: " in said
        assert "Connection timed out (it is off, or a firewall is between)" in said
    assert list(launcher.records()) == []


@pytest.mark.long
def test_a_journal_that_a_firewall_hides_is_named(launcher, machines):
    launcher.document["engine"]["rendezvous_timeout_ms"] = 3000
    launcher.write()
    machines.drop(f"tcp dport {launcher.journal}")
    status, said = launcher.run("up")
    assert status == 1
    assert "ended before it served" in said
    assert "not all ranks came within 3 s: joined: none; missing: 1" in said
    assert gone(launcher.pids())
    log = launcher.folders("logs")[1] / "rank1.log"
    named = f"rank 0 was not found at 10.77.0.1:{launcher.journal} within 3 s"
    # The rank may have been killed with the start before it had waited as long.
    assert named in log.read_text() or "was not found" not in log.read_text()
    assert not [file for folder in launcher.folders("stage") for file in folder.glob("*")]


def moment(line):
    return datetime.fromisoformat(line.split()[0]).timestamp()


@pytest.mark.long
def test_a_node_that_vanishes_while_serving_is_named_and_the_world_ends(launcher, machines):
    status, said = launcher.run("up", "--skip-preflight")
    assert status == 0, said
    pids = launcher.pids()
    machines.pull_cable()
    pulled = time.time()
    end = time.monotonic() + SLOW_S
    while not gone(pids):
        assert time.monotonic() < end
        time.sleep(0.05)
    logs = [
        (folder / f"rank{rank}.log").read_text()
        for rank, folder in enumerate(launcher.folders("logs"))
    ]
    assert "rank 1: silent for" in logs[0]
    assert "rank 0 is gone: silent for" in logs[1]
    for rank, (log, expected) in enumerate(zip(logs, (2, 3), strict=True)):
        last = log.strip().splitlines()[-1]
        assert last.endswith(f"stopped exit_status={expected}")
        took = moment(last) - pulled
        sys.stdout.write(f"rank {rank} ended {took:.2f} s after the cable was pulled\n")
        # Silence is noticed after 2 s and a quarter; all end within 3 s where the machine is idle.
        assert took < 6
    status, said = launcher.run("status")
    assert status == 1
    assert "rank 0 at 10.77.0.1: ended" in said
    assert "rank 1 at 10.77.0.2: ssh: connect" in said
    status, said = launcher.run("down")
    assert status == 1
    assert "its rank may still run there: `dgpp down` once it answers" in said
    machines.mend()
    status, said = launcher.run("status", "--json")
    ranks = json.loads(said)["ranks"]
    assert [rank["last"][-1] for rank in ranks] == ["2", "3"]
    assert launcher.run("down") == (0, "not running\n")


@pytest.mark.long
def test_a_node_that_vanishes_during_a_start_is_named_and_rank_0_is_ended(launcher, machines):
    # Rank 0 waits for a journal connection that never comes.
    launcher.document["engine"]["rendezvous_timeout_ms"] = 60_000
    launcher.write()
    machines.drop(f"tcp dport {launcher.journal}")
    starting = launcher.start("up", "--skip-preflight")
    said = ""
    while "rank 1 started" not in said:
        said += starting.stdout.readline()
    machines.pull_cable()
    begun = time.monotonic()
    said += starting.communicate(timeout=100)[0]
    assert time.monotonic() - begun < ALIVE_S * (ALIVE_TIMES + 1) + 2 * CONNECT_S + SLOW_S
    assert starting.returncode == 1
    assert "rank 1 at 10.77.0.2: " in said
    assert "its rank may still run there: `dgpp down` once it answers" in said
    first, second = launcher.pids()
    assert gone([first])
    machines.mend()
    begun = time.monotonic()
    said = launcher.run("down")[1]
    assert time.monotonic() - begun < ALONE_S + SLOW_S
    assert "killed" not in said
    assert gone([second])
    assert not [file for folder in launcher.folders("stage") for file in folder.glob("*")]
