"""A record of a process that cannot be read: nobody takes its rank for one that is not there."""

from __future__ import annotations

import pytest
from fake_ranks import fake_deployment, states
from msgspec import msgpack

from dgpp.cli import status
from dgpp.cluster.agent import answer
from dgpp.cluster.condition import conditions
from dgpp.cluster.down import bring_down
from dgpp.cluster.errors import ClusterError, StartError
from dgpp.cluster.examine import examine as look
from dgpp.cluster.messages import Examine, List, Signal, Start
from dgpp.cluster.record import State, read_record, state_of
from dgpp.cluster.up import Up, bring_up

QUICK = Up(checks=False, timeout_s=20)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Two ranks that run."""
    deployment = fake_deployment(tmp_path, monkeypatch)
    bring_up(deployment, QUICK, lambda line: None)
    yield deployment
    bring_down(deployment, lambda line: None)


def record_of(world, rank):
    return world.nodes[rank].own(world.place).record(rank)


def damaged(text):
    """What may stand in place of a record."""
    yield b""
    yield text[: len(text) // 2]
    yield b"\0" * len(text)
    yield text.replace(b'"pid":', b'"pit":')
    yield text.replace(b'"rank":', b'"rank":"none","other":')
    yield msgpack.encode({"rank": 0})


@pytest.mark.parametrize("rank", [0, 1])
def test_status_names_the_file_whatever_is_in_it(world, rank):
    file = record_of(world, rank)
    text = file.read_bytes()
    for content in damaged(text):
        file.write_bytes(content)
        found = conditions(world)
        said = found[rank].words
        assert said.startswith(f"{world.nodes[rank].name}: {file}: cannot be read as the record of")
        assert f"`pgrep -af {world.place.deployment}` shows it; end it, then remove" in said
        assert found[rank].state is State.UNREADABLE
        assert found[1 - rank].state is State.RUNNING
    file.unlink()
    file.mkdir()
    assert "(Is a directory), and its rank may run" in conditions(world)[rank].words
    file.rmdir()
    file.write_bytes(text)
    assert states(world) == [State.RUNNING, State.RUNNING]


def test_every_other_command_names_it_too_and_leaves_the_rank_alone(world):
    node, place = world.nodes[1], world.place
    file = record_of(world, 1)
    text = file.read_bytes()
    pid = read_record(file).pid
    file.write_bytes(b"{}")
    named = f"{file}: cannot be read as the record of a process"
    with pytest.raises(StartError, match="cannot be read as the record"):
        bring_up(world, QUICK, lambda line: None)
    for request in (
        Signal(place, 1, 0),
        Start(place, 1, "{}", "", ("true",), {}, "c", apart=True),
    ):
        with pytest.raises(ClusterError, match="cannot be read as the record"):
            node.ask(request)
    request = Examine(node.own(place), 1, 2, "scripted", False, (), (), "m", "", ())
    assert [f for f in look(request) if f.what.startswith(named) and f.level == "error"]
    ((name, state, record, unknown),) = answer(List(node.own(place).log_dir, 1)).deployments
    assert (name, state, record) == (place.deployment, State.UNREADABLE, None)
    assert unknown.startswith(named)
    # What can be ended is, and the staged files of the other rank stay with it.
    said = []
    assert not bring_down(world, said.append, first_s=5)
    assert [line for line in said if line.startswith(f"{node.name}: {named}")]
    assert state_of(read_record(record_of(world, 0))) is State.ENDED
    file.write_bytes(text)
    assert read_record(file).pid == pid
    assert list(node.own(place).stage.iterdir())


def test_status_of_all_deployments_goes_on_past_one(world, monkeypatch, capsys):
    file = record_of(world, 0)
    text = file.read_bytes()
    file.write_bytes(b"nonsense")
    settings = world.settings
    monkeypatch.setattr(status, "load_site_alone", lambda: settings)
    assert status._all(as_json=False) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{world.place.deployment}  ?: {file}: cannot be read as the record of")
    file.write_bytes(text)
