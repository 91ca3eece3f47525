"""What can keep the launcher from a node: each thing named, with what mends it."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from launching import Launcher, gone
from serving import ROOT
from sshd import Machines

from dgpp.cluster.errors import UnreachableError
from dgpp.cluster.messages import Look
from dgpp.cluster.node import RemoteNode
from dgpp.cluster.place import Place
from dgpp.cluster.record import State

HOST = "127.0.0.2"
PROGRAM = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "dgpp")
LOOK = Look(Place("~/log", "~/stage", "d"), 1)


@pytest.fixture
def machines(tmp_path):
    found = Machines(tmp_path / "ssh")
    yield found
    found.close()


def node_of(machines, program=PROGRAM, host=HOST, ssh="ssh"):
    return RemoteNode(1, host, program, ssh=[ssh, "-F", str(machines.config)])


def why(node, timeout_s=20.0):
    with pytest.raises(UnreachableError) as found:
        node.ask(LOOK, timeout_s)
    node.close()
    said = str(found.value)
    assert said.startswith(f"rank 1 at {node.host}: ")
    return said


def test_a_node_that_lets_nobody_in_or_is_another_one(machines):
    machines.make_key("stranger")
    machines.configure(user="stranger")
    said = why(node_of(machines))
    assert "Permission denied" in said
    assert "(let this user's key in there (ssh-copy-id), or name DGPP_SSH_USER)" in said
    machines.configure(strict="yes")
    (machines.folder / "known").unlink()
    said = why(node_of(machines))
    assert "Host key verification failed. (its host key is not known: ssh there once)" in said
    machines.configure()
    node = node_of(machines)
    assert node.ask(LOOK).state is State.ABSENT
    node.close()
    machines.stop(HOST)
    assert "Connection refused (its ssh server does not run)" in why(node)
    machines.make_key("host")
    machines.start(HOST)
    said = why(node)
    assert "(its host key has changed: find out why, then forget the old one with ssh-keyg" in said


def test_a_node_without_what_it_takes(machines):
    said = why(node_of(machines, ["env", "A=b", "/nowhere/python", "-m", "dgpp"]))
    assert "No such file or directory (no /nowhere/python -m dgpp there: install that dgpp" in said
    said = why(node_of(machines, [sys.executable, "-I", "-m", "no_dgpp"]))
    assert "No module named no_dgpp (install dgpp for that Python there, or name --bin)" in said
    assert "(no such name; see DGPP_NODES and" in why(node_of(machines, host="no-host.invalid"))
    assert "ssh: No such file or directory" in why(node_of(machines, ssh="/nowhere/ssh"))
    assert "no answer within 0.5 s; is the machine well?" in why(
        node_of(machines, ["sh", "-c", "sleep 9", "x"]), 0.5
    )
    said = why(node_of(machines, ["sh", "-c", "exit 3", "x"]))
    assert "status 3 (`sh -c 'exit 3' x agent` failed there)" in said
    machines.stop(HOST)
    machines.start(HOST, banner="Welcome")
    said = why(node_of(machines))
    assert "its shell prints something of its own, or another dgpp is there: 'Welcome\\n" in said


@pytest.mark.parametrize(
    "name", ["a b", "$(touch oops)", 'it\'s "q"; touch oops', "new\nline", "*"]
)
def test_a_program_may_be_anywhere(machines, name):
    folder = machines.folder / name
    folder.mkdir()
    program = folder / "dgpp"
    words = " ".join(f"'{word}'" for word in PROGRAM)
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    node = node_of(machines, [str(program)])
    assert node.ask(LOOK).state is State.ABSENT
    # The connection stays for the next question.
    assert node.ask(LOOK).state is State.ABSENT
    node.close()
    assert not list(machines.folder.rglob("oops"))


@pytest.fixture
def launcher(machines, tmp_path):
    found = Launcher(machines, tmp_path, placement="inline")
    yield found
    found.kill_all()


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.3, 0.8, 1.4, 2.0, 3.0])
def test_ctrl_c_at_any_time_leaves_nothing(launcher, after_s):
    """As a terminal sends it: to everything that `up` has in front."""
    starting = launcher.start("up", "--skip-preflight")
    time.sleep(after_s)
    os.killpg(starting.pid, signal.SIGINT)
    said = starting.communicate(timeout=60)[0]
    if "READY" in said:
        assert starting.returncode == 0
        assert launcher.run("down")[0] == 0
    else:
        # Before dgpp has begun it is Python that ends, with 1 where that itself has hardly begun.
        own = starting.returncode in (-signal.SIGINT, 1) and said.endswith("KeyboardInterrupt\n")
        assert own or starting.returncode in (130, -signal.SIGINT), said
    assert gone(launcher.pids())
    assert not [file for folder in launcher.folders("stage") for file in folder.glob("*")]
    assert launcher.run("status")[0] == 3


@pytest.mark.long
def test_down_during_up_waits_its_turn_and_ports_that_are_taken_are_named(launcher):
    starting = launcher.start("up", "--skip-preflight")
    said = starting.stdout.readline()
    assert "rank 0 started" in said
    status, refused = launcher.run("down")
    assert status == 1
    named = f"another command is at work on this deployment (process {starting.pid}); wait for it"
    assert named in refused
    said += starting.communicate(timeout=60)[0]
    assert starting.returncode == 0
    assert "READY" in said
    # Another deployment of the same nodes wants the same ports.
    folder = launcher.config.parent / "other"
    folder.mkdir()
    other = Launcher(launcher.machines, folder, name="other", placement="inline")
    other.document["http"] = {"port": launcher.port}
    other.write()
    status, said = other.run("up")
    assert status == 1
    taken = f"http.port: cannot listen on 127.0.0.1:{launcher.port}: Address already in use"
    assert f"{taken} — end who has it" in said
    begun = time.monotonic()
    status, said = other.run("up", "--skip-preflight")
    assert status == 1
    assert taken in said
    assert time.monotonic() - begun < 20
    assert gone(other.pids())
    assert launcher.answers()
    assert launcher.run("down")[0] == 0


@pytest.mark.long
def test_two_deployments_side_by_side_on_the_same_nodes(launcher, tmp_path):
    """One user, one home: nothing but the file's place tells them apart."""
    other = Launcher(launcher.machines, tmp_path, name="other", placement="inline")
    both = (launcher, other)
    assert [one.run("up")[0] for one in both] == [0, 0]
    assert launcher.paths()["logs"] != other.paths()["logs"]
    assert launcher.answers()
    assert other.answers()
    status, said = launcher.run("status", "--all", config=False)
    assert said.count("running since") == 2
    pids = [one.pids() for one in both]
    assert launcher.run("down")[0] == 0
    assert gone(pids[0])
    assert not gone(pids[1])
    assert other.answers()
    assert other.run("status")[0] == 0
    status, said = other.run("down")
    assert status == 0, said
    assert "op streams: identical across 2 ranks" in said
