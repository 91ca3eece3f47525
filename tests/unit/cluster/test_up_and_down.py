"""Bringing ranks up and down: undone when it fails or is interrupted, wherever that is."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import time
from pathlib import Path

import pytest
from cut_short import cut_short
from fake_ranks import Elsewhere, fake_deployment, left, states
from msgspec.structs import replace
from small_disk import disk

from dgpp.cli import logs
from dgpp.cli import main as cli
from dgpp.cluster import agent
from dgpp.cluster.deployment import Access, Deployment
from dgpp.cluster.down import COMPARED, ENDED, TOLD, UNTOLD, bring_down
from dgpp.cluster.errors import AlreadyUpError, ClusterError, LockedError, StartError
from dgpp.cluster.interruption import StoppedError
from dgpp.cluster.messages import Signal, Start
from dgpp.cluster.place import locked
from dgpp.cluster.record import State, read_record, start_ticks, write_record
from dgpp.cluster.up import Up, bring_up, stopped_by_down

QUICK = Up(checks=False, timeout_s=20)


@pytest.fixture
def world(tmp_path, monkeypatch):
    deployment = fake_deployment(tmp_path, monkeypatch)
    yield deployment
    for node in deployment.nodes:
        node.before = node.after = lambda number: None
    bring_down(deployment, lambda line: None)
    assert left(deployment) == ([], [])


def up(deployment, wanted=QUICK):
    said = []
    line = bring_up(deployment, wanted, said.append)
    end = time.monotonic() + 10
    for node in deployment.nodes:
        # Of a world, rank 0 says it for all; these scripts know nothing of each other.
        while "READY" not in node.own(deployment.place).log(node.rank).read_text():
            assert time.monotonic() < end
            time.sleep(0.01)
    return line, said


def down(deployment):
    said = []
    return bring_down(deployment, said.append, first_s=5), "\n".join(said)


def test_up_once_replaced_and_down(world):
    line, said = up(world)
    assert line == "READY — http://h/v1 (model m) — stop: Ctrl-C"
    named = f"dgpp down{world.words}"
    assert stopped_by_down(line, world).endswith(f"— stop: {named}")
    assert shlex.split(named) == [
        "dgpp", "down", str(world.config), "--bin", world.nodes[0].program[0]
    ]  # fmt: skip
    assert [text.partition(" (")[0] for text in said] == [
        "rank 0 started on here",
        "rank 1 started on node1",
    ]
    before = [read_record(n.own(world.place).record(n.rank)).pid for n in world.nodes]
    with pytest.raises(
        AlreadyUpError, match=r"rank 0 at here, rank 1 at node1: up already; `dgpp"
    ) as found:
        up(world)
    assert f"up already; `{named}` ends it" in str(found.value)
    assert states(world) == [State.RUNNING, State.RUNNING]
    up(world, replace(QUICK, replace=True))
    after = [read_record(n.own(world.place).record(n.rank)).pid for n in world.nodes]
    assert not set(before) & set(after)
    with locked(world.place), pytest.raises(LockedError, match="another command is at work"):
        down(world)
    assert states(world) == [State.RUNNING, State.RUNNING]
    done, said = down(world)
    assert done, said
    assert said == "op streams: identical across 2 ranks (16 bytes)"
    assert (world.place.collected / "rank1.log").read_text().count("READY") == 1
    assert down(world) == (True, "not running")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_interruption_at_any_request_leaves_nothing(world, rank, moment):
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    node = world.nodes[rank]
    statuses, expected = [], []
    # Rank 0 is looked at until it serves, rank 1 only where it is asked to do something.
    for at in range(6 if rank == 0 else 2):
        node.requests.clear()
        number = numbers[at % len(numbers)]

        def interrupt(count, at=at, number=number):
            if count == at:
                os.kill(os.getpid(), number)

        setattr(node, moment, interrupt)
        try:
            up(world)
        except StoppedError as error:
            statuses.append(error.exit_status - 128)
            expected.append(number)
            assert left(world) == ([], [])
        else:
            assert len(node.requests) <= at
            setattr(node, moment, lambda number: None)
            bring_down(world, lambda line: None)
    assert len(statuses) >= 2
    assert statuses == expected
    assert handlers == [signal.getsignal(n) for n in numbers]


def stopped_down(world):
    """What a signal made of `down`; None where it came to its end."""
    try:
        down(world)
    except StoppedError as error:
        return error
    return None


def test_a_signal_at_any_request_of_down_ends_it_with_a_word_and_the_next_one_goes_on(world, capfd):
    node, numbers = world.nodes[0], (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    words = set()
    for at in range(40):
        up(world)
        node.requests.clear()
        number = numbers[at % len(numbers)]
        node.before = lambda count, at=at, number=number: (
            count == at and os.kill(os.getpid(), number)
        )
        capfd.readouterr()
        stopped = stopped_down(world)
        node.before = lambda count: None
        if stopped is None:
            assert len(node.requests) <= at
            break
        assert stopped.exit_status == 128 + number
        began, _, word = str(stopped).partition("; ")
        assert began == f"stopped by {number.name}"
        assert capfd.readouterr().err == "stopping: what was asked last is answered first\n"
        if word == UNTOLD:
            assert states(world) == [State.RUNNING, State.RUNNING]
        elif word != TOLD:
            assert left(world) == ([], [])
        words.add(word)
        down(world)
    assert words == {UNTOLD, TOLD, ENDED, COMPARED}


def test_a_signal_while_ranks_that_are_replaced_answer_their_clients_is_heard(world):
    program = Path(world.nodes[0].program[0])
    script = program.read_text()
    program.write_text(script.replace("trap 'exit 0' INT", "trap '' INT"))
    up(world)
    program.write_text(script)
    node = world.nodes[0]
    told = [signal.SIGINT]

    def interrupt(count):
        if told and isinstance(node.requests[-1], Signal):
            os.kill(os.getpid(), told.pop())

    node.after = interrupt
    with pytest.raises(StoppedError, match=r"stopped by SIGINT; ranks were told to end and go on"):
        up(world, replace(QUICK, replace=True))
    assert states(world) == [State.RUNNING, State.RUNNING]
    assert not bring_down(world, lambda line: None, first_s=0.1)


def test_what_goes_wrong_after_a_signal_is_told_beside_it(world):
    node = world.nodes[1]

    def both(count):
        os.kill(os.getpid(), signal.SIGINT)
        node.lose(count)

    node.before = both
    for wanted in (QUICK, replace(QUICK, checks=True)):
        with pytest.raises(StoppedError) as found:
            up(world, wanted)
        assert found.value.exit_status == 130
        assert str(found.value) == (
            "stopped by SIGINT; nothing was started; meanwhile: rank 1 at node1: Connection timed "
            "out (it is off)"
        )
    # A rank whose node goes away while it is being started may run.
    node.requests.clear()
    node.before = lambda count: count and both(count)
    said = []
    with pytest.raises(StoppedError) as found:
        bring_up(world, QUICK, said.append)
    assert "stopped by SIGINT; what may still run is named above; meanwhile: rank 1 " in str(
        found.value
    )
    assert "rank 1 at node1: Connection timed out (it is off); its rank may still run" in said[-1]


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_rank_that_cannot_be_started_leaves_no_other(world, wrong):
    node = world.nodes[wrong]

    def refuse(number):
        if isinstance(node.requests[-1], Start):
            raise ClusterError(f"{node.name}: No space left on device (make room on that disk)")

    node.before = refuse
    with pytest.raises(ClusterError, match="make room on that disk"):
        up(world)
    assert left(world) == ([], [])


def test_a_node_that_goes_away_during_the_start_is_named_and_what_can_be_ended_is(world):
    first, second = world.nodes
    second.after = lambda number: second.lose(number) if number else None
    said = []
    with pytest.raises(ClusterError, match="rank 1 at node1: Connection timed out"):
        bring_up(world, QUICK, said.append)
    assert states(world)[0] is State.ENDED
    told = "rank 1 at node1: Connection timed out (it is off); its rank may still run there: "
    assert [line for line in said if line.startswith(told)] == [
        told + "`dgpp down` once it answers"
    ]
    assert first.home not in (second.home, Path())


def test_down_ends_what_it_can_reach_and_names_the_rest(world):
    up(world)
    world.nodes[1].before = world.nodes[1].lose
    done, said = down(world)
    assert not done
    assert "rank 1 at node1: Connection timed out (it is off); its rank may still run" in said
    assert said.count("node1") == 1
    assert states(world)[0] is State.ENDED
    world.nodes[1].before = lambda number: None
    assert down(world)[0]


def test_logs_of_the_nodes_that_answer_are_shown_and_the_rest_named(world, monkeypatch, capsys):
    monkeypatch.setattr(logs, "open_deployment", lambda *named: world)
    up(world)
    assert cli.main(["logs"]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in whole] == ["[0]", "[1]"]
    for lost, node in enumerate(world.nodes):
        node.before = node.lose
        assert cli.main(["logs"]) == 1
        said = capsys.readouterr()
        assert said.out.splitlines() == [whole[1 - lost]]
        assert said.err == f"{node.name}: Connection timed out (it is off)\n"
        node.before = lambda number: None


def test_commands_that_follow_name_the_deployment_where_the_site_does_not(world):
    ssh_config = Path("my ssh")
    for usual, named in ((True, ""), (False, " 'two nodes.json'")):
        access = Access(ssh_config=str(ssh_config))
        found = Deployment(Path("two nodes.json"), world.settings, access, usual=usual)
        assert found.words == f"{named} --ssh-config {shlex.quote(str(ssh_config.absolute()))}"


def test_ranks_of_two_versions_are_refused_before_anything_starts(world):
    world.nodes[1].version = "9.9"
    with pytest.raises(StartError, match=r"rank 1 at node1 has dgpp 9\.9, this is .*: install one"):
        up(world)
    assert states(world) == [State.ABSENT, State.ABSENT]


def test_after_a_power_cut_records_and_locks_hold_nobody_back(world):
    up(world)
    records = [read_record(n.own(world.place).record(n.rank)) for n in world.nodes]
    down(world)
    # As the machine left them: a boot ago, and a number that another process has now.
    write_record(world.place.record(0), replace(records[0], boot_id="0" * 36))
    other = replace(records[1], pid=os.getpid())
    write_record(world.nodes[1].own(world.place).record(1), other)
    (world.place.logs / "launcher.lock").write_text(f"{os.getpid()}\n")
    assert states(world) == [State.REBOOTED, State.ENDED]
    up(world)
    assert states(world) == [State.RUNNING, State.RUNNING]


def processes_of(folder):
    """Processes whose command names it, their remains left out."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        pid = int(place.name)
        with contextlib.suppress(OSError):
            named = str(folder).encode() in (place / "cmdline").read_bytes()
            if named and pid != os.getpid() and start_ticks(pid):
                found.append(pid)
    return found


def require_nothing_runs(world, folder):
    assert left(world) == ([], [])
    end = time.monotonic() + 5
    while processes_of(folder):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_at_whatever_step_up_is_killed_what_it_started_is_known_and_ended(world, tmp_path):
    statuses = []
    for status in cut_short(lambda: up(world), signal.SIGKILL, str(tmp_path)):
        statuses.append(status)
        down(world)
        require_nothing_runs(world, tmp_path)
    assert set(statuses) == {-signal.SIGKILL}
    # Folders, settings, log, process and record of two ranks, and the lock.
    assert len(statuses) > 12


@pytest.mark.long
def test_at_whatever_step_down_is_killed_the_next_one_ends_it(world, tmp_path):
    up(world)
    for status in cut_short(lambda: down(world), signal.SIGKILL, str(tmp_path)):
        assert status == -signal.SIGKILL
        down(world)
        require_nothing_runs(world, tmp_path)
        up(world)
    require_nothing_runs(world, tmp_path)


def test_a_difference_names_the_first_record(world, monkeypatch):
    up(world)
    theirs = world.nodes[1].own(world.place).operations(1)
    theirs.write_text("T 1 5 1\nT 1 7 2\n")
    done, said = down(world)
    assert not done
    assert said == (
        "op streams: DIFFER at record 2: rank 0 at here has 'T 1 6 2', rank 1 at node1 'T 1 7 2'"
    )
    assert (world.place.collected / "serve_rank1.ops").read_text() == theirs.read_text()
    monkeypatch.setattr(agent, "BLOCK_BYTES", 9)
    for text, expected in (
        ("T 1 5 1\n", "rank 1 at node1 ends before record 2, where rank 0 at here has 'T 1 6 2'"),
        ("T 1 5 1\nT 1 6 2\nR 1 0 2\n", "rank 0 at here ends before record 3"),
        ("X", "DIFFER at record 1: rank 0 at here has"),
    ):
        up(world)
        theirs.write_text(text)
        done, said = down(world)
        assert not done
        assert expected in said
    up(world)
    theirs.unlink()
    assert "op streams: missing of rank 1 at node1" in down(world)[1]


@pytest.mark.parametrize("before", ["nothing", "a run"])
def test_what_lies_on_a_node_that_was_not_started_is_not_compared(world, tmp_path, before):
    was, place = world.nodes[1], world.place
    other = Elsewhere(1, "another", was.program, tmp_path / "another")
    if before == "a run":
        world.nodes[1] = other
        up(world)
        assert down(world)[0]
    else:
        stream = other.own(place).operations(1)
        stream.parent.mkdir(parents=True)
        stream.write_text("T 1 5 1\nT 1 6 2\n")
    world.nodes[1] = was
    up(world)
    world.nodes[1] = other
    done, said = down(world)
    assert not done
    assert said == (
        "rank 1 at another: not started by the `dgpp up` that started rank 0 at here, so not "
        "compared: did DGPP_NODES name others then?"
    )
    # What was brought here of the run before is not taken for this one's.
    assert not list(place.collected.glob("*"))
    world.nodes[1] = was
    up(world)
    assert down(world) == (True, "op streams: identical across 2 ranks (16 bytes)")


def test_what_was_collected_is_of_one_run(world):
    up(world)
    theirs = world.nodes[1].own(world.place).operations(1)
    theirs.write_text("X")
    assert not down(world)[0]
    assert {file.name for file in world.place.collected.iterdir()} == {
        "rank1.log",
        "serve_rank1.ops",
    }
    up(world)
    assert down(world)[0]
    assert [file.name for file in world.place.collected.iterdir()] == ["rank1.log"]


def test_a_rank_that_does_not_end_is_killed_and_named(world):
    program = Path(world.nodes[0].program[0])
    script = program.read_text()
    program.write_text(script.replace("trap 'exit 0' INT", "trap '' INT"))
    up(world)
    program.write_text(script)
    said = []
    assert not bring_down(world, said.append, first_s=0.2)
    assert "rank 0 at here did not end within 0.2 s: killed" in said
    assert left(world) == ([], [])


@pytest.fixture
def small_disk(tmp_path):
    with disk(tmp_path / "node1", "32k") as folder:
        yield folder


def test_a_disk_that_is_full_at_any_step_is_named_and_nothing_is_left(small_disk, world):
    page, refused = os.sysconf("SC_PAGE_SIZE"), 0
    for free in range(8):
        full = small_disk / "full"
        full.write_bytes(bytes((8 - free) * page))
        try:
            bring_up(world, QUICK, lambda line: None)
        except ClusterError as error:
            refused += 1
            place, said = re.fullmatch(r"rank 1 at node1: (/[^:]+): (.+)", str(error)).groups()
            assert Path(place).is_relative_to(small_disk)
            assert said == "No space left on device (make room on that disk)"
            assert left(world) == ([], [])
            assert list(small_disk.rglob("*.new")) == []
        bring_down(world, lambda line: None)
        full.unlink()
    # Settings, token, record: each did not fit once.
    assert refused >= 3


@pytest.mark.parametrize("name", ["a b", "$(touch oops)", 'it\'s "q"', "new\nline", "*", "~"])
def test_files_may_be_anywhere(tmp_path, monkeypatch, name):
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    deployment = fake_deployment(folder, monkeypatch)
    up(deployment)
    assert states(deployment) == [State.RUNNING, State.RUNNING]
    assert down(deployment)[0]
    assert left(deployment) == ([], [])
    assert not list(tmp_path.rglob("oops"))
