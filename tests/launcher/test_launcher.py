"""`dgpp up` and its kin over real ssh servers on loopback, one home for each machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from launching import Launcher, gone
from sshd import Machines


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    found = Machines(tmp_path_factory.mktemp("machines") / "ssh")
    yield found
    found.close()


@pytest.fixture
def launcher(machines, tmp_path):
    found = Launcher(machines, tmp_path)
    yield found
    found.kill_all()


def test_up_serves_status_tells_logs_merge_and_down_leaves_nothing(launcher, machines):
    assert launcher.run("status")[0] == 3
    status, said = launcher.run("up")
    assert status == 0, said
    assert f"READY — http://127.0.0.1:{launcher.port}/v1" in said
    assert "stop: dgpp down" in said
    assert launcher.answers()
    status, said = launcher.run("status")
    assert status == 0, said
    assert "rank 1 at 127.0.0.2: running since" in said
    status, said = launcher.run("up", "--skip-preflight")
    assert status == 1
    assert "rank 0 at 127.0.0.1, rank 1 at 127.0.0.2: up already" in said
    status, said = launcher.run("logs")
    assert status == 0
    lines = said.splitlines()
    assert [line for line in lines if line.startswith("[1]") and "rank 1 serves" in line]
    moments = [line.split(" ", 2)[1] for line in lines if line.startswith(("[0] 2", "[1] 2"))]
    assert moments == sorted(moments)
    # Each machine's files are in its own home, for its owner alone.
    place = launcher.paths()
    staged = machines.homes["127.0.0.2"] / Path(place["stage"]).relative_to(launcher.home)
    assert {file.name for file in staged.iterdir()} == {
        "rank1.config.json",
        "rank1.token",
        "rank1.env",
    }
    assert all(file.stat().st_mode & 0o077 == 0 for file in staged.iterdir())
    pids = launcher.pids()
    status, said = launcher.run("down")
    assert status == 0, said
    assert "op streams: identical across 2 ranks" in said
    assert gone(pids)
    assert not staged.exists()
    # The other machine's log came here.
    collected = Path(place["logs"]) / "collected" / "rank1.log"
    assert "rank 1 serves" in collected.read_text()
    assert launcher.run("status")[0] == 3
    status, said = launcher.run("status", "--all", config=False)
    assert "ended (was process" in said
    status, said = launcher.run("status", "--json")
    found = json.loads(said)["ranks"]
    assert [(rank["rank"], rank["state"], rank["pid"]) for rank in found] == [
        (0, "ended", pids[0]),
        (1, "ended", pids[1]),
    ]
    assert [rank["last"].rpartition(" ")[2] for rank in found] == ["exit_status=0"] * 2
    assert not list(launcher.home.rglob("oops"))


def test_a_rank_that_cannot_start_is_named_and_nothing_is_left(launcher, machines):
    status, said = launcher.run("up", "--set", "engine.script=/nowhere/script.jsonl")
    assert status == 1
    assert "rank 0 at 127.0.0.1 ended before it served" in said
    assert "/nowhere/script.jsonl" in said
    assert gone(launcher.pids())
    status, said = launcher.run("up", "--bin", "/nowhere/dgpp")
    assert status == 1
    assert "no /nowhere/dgpp there: install that dgpp on every node (a release: `dgpp inst" in said
    machines.stop("127.0.0.2")
    try:
        for verb in ("up", "doctor"):
            status, said = launcher.run(verb)
            assert status == 1
            assert "rank 1 at 127.0.0.2: " in said
            assert "its ssh server does not run" in said
    finally:
        machines.start("127.0.0.2")
    assert gone(launcher.pids())


def test_doctor_names_what_is_wrong_with_which_node(launcher):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", launcher.journal))
        taken.listen()
        status, said = launcher.run("doctor")
        assert status == 1
        named = (
            f"ports.journal: cannot listen on 0.0.0.0:{launcher.journal}: Address already in use"
        )
        assert f"error    {named}" in said
        status, said = launcher.run("up")
        assert status == 1
        assert f"error: rank 0 at 127.0.0.1: {named}" in said
        assert "dgpp: error: not started: rank 0 at 127.0.0.1: not fit, as said above\n" in said
    status, said = launcher.run("doctor")
    assert status == 0, said
    assert "rank 1 at 127.0.0.2\n  ok       " in said


@pytest.mark.long
def test_a_killed_rank_ends_the_world_and_down_says_so(launcher):
    assert launcher.run("up", "--skip-preflight")[0] == 0
    first, second = launcher.pids()
    os.kill(second, signal.SIGKILL)
    end = time.monotonic() + 10
    while not gone([first, second]):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert launcher.run("status")[0] == 3
    status, said = launcher.run("down")
    assert (status, "not running" in said) == (0, True)
    # A record of another process is never taken for a rank.
    place = launcher.paths()
    record = Path(place["ranks"][0]["record"])
    other = json.loads(record.read_text()) | {"pid": os.getpid()}
    record.write_text(json.dumps(other))
    said = launcher.run("signal", "INT", str(launcher.config), "--rank", "0", config=False)[1]
    record.unlink()
    assert "does not run" in said
