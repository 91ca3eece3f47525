"""Ranks meet over TCP: all come, or the error says who did not and why."""

from __future__ import annotations

import asyncio
import socket

import pytest
from ranks import SMALL, frame_of

from dgpp.net.journal_errors import JoinError
from dgpp.net.verbs import rendezvous
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.rendezvous import Gathering, Joining
from dgpp.net.verbs.table import Party, check_table

TOKEN = b"0123456789abcdef"


def party(rank, world=3, version="1.0", token=TOKEN, lanes=2, geometry=SMALL):
    return Party(version, token, frame_of(rank, world, lanes, geometry))


async def attend(side, *, ready=True):
    """The table, or what was raised; a rank that is not `ready` stays away from the second half."""
    try:
        table = await (side.gather() if isinstance(side, Gathering) else side.join())
        if ready:
            await side.ready()
        return table
    except JoinError as error:
        return str(error)
    finally:
        if ready:
            await side.close()


def meet(*others, world=3, timeout_s=5.0, extra=None):
    """What rank 0 and the others got."""

    async def run():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            first = Gathering(listener, party(0, world), timeout_s)
            sides = [first, *(Joining("127.0.0.1", port, p, timeout_s) for p in others)]
            jobs = [asyncio.ensure_future(attend(side)) for side in sides]
            if extra is not None:
                await extra(port)
            return await asyncio.gather(*jobs)

    return asyncio.run(run())


def test_all_ranks_get_the_same_table():
    told = meet(party(2), party(1))
    assert told[0] == tuple(frame_of(rank, 3) for rank in range(3))
    assert told == [told[0]] * 3


OTHER = Geometry(4, 64, 2, 512)


@pytest.mark.parametrize(
    ("misfit", "said"),
    [
        (party(1, version="1.1"), "rank 1 runs version 1.1, rank 0 1.0"),
        (party(1, world=4), "rank 1 is of a world of 4, this one has 3"),
        (party(1, lanes=1), "rank 1 has 1 lanes, rank 0 2 (DGPP_ROCE_DEVICES"),
        (
            party(1, geometry=OTHER),
            "rank 1 has 4 latency slots of 64 bytes and 2 bulk slots of 512",
        ),
        (party(2), "rank 2 came twice"),
        (party(0), "rank 0 is outside 1..2"),
    ],
    ids=["version", "world", "lanes", "geometry", "twice", "rank"],
)
def test_a_rank_that_does_not_fit_ends_the_start_by_name(misfit, said):
    first, *others = meet(party(2), misfit)
    assert said in first
    assert any(said in other for other in others)
    assert all(isinstance(other, str) for other in others), "nobody waits on"


def test_a_stranger_is_turned_away_and_the_world_waits_on():
    told = meet(party(1), party(1, token=b"another-token-16"), party(2))
    assert told[0] == told[1] == told[3] == tuple(frame_of(rank, 3) for rank in range(3))
    assert "wrong cluster token" in told[2]


def test_who_did_not_come_is_named_with_who_was_turned_away():
    async def noise(port):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()

    first, other = meet(party(2), timeout_s=1.5, extra=noise)
    assert "rank 1 did not come within 1.5 s (engine.rendezvous_timeout_ms)" in first
    assert "last turned away: 127.0.0.1:" in first
    assert "not a journal frame" in first
    assert "rank 0 says: roce bus: rank 1 did not come" in other or "within 1.5 s" in other


def test_a_rank_that_left_before_all_came_may_come_again():
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            first = asyncio.ensure_future(attend(Gathering(listener, party(0), 5.0)))
            early = Joining("127.0.0.1", port, party(1), 0.2)
            gone = await attend(early)
            again = [Joining("127.0.0.1", port, party(rank), 5.0) for rank in (1, 2)]
            return gone, *await asyncio.gather(first, *map(attend, again))

    gone, *told = asyncio.run(run())
    assert "gave no table within 0.2 s" in gone
    assert told == [told[0]] * 3
    assert not isinstance(told[0], str)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_rank_that_does_not_connect_is_named(leaves):
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            first = asyncio.ensure_future(attend(Gathering(listener, party(0, 2), 0.5)))
            other = Joining("127.0.0.1", port, party(1, 2), 0.5)
            await attend(other, ready=False)
            if leaves:
                await other.close()
            said = await first
            await other.close()
            return said

    said = "left before all were connected" if leaves else "did not connect within 0.5 s"
    assert f"roce bus: rank 1 {said}" in asyncio.run(run())


def test_nobody_at_the_port_is_named(monkeypatch):
    monkeypatch.setattr(rendezvous, "RETRY_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    told = asyncio.run(attend(Joining("127.0.0.1", port, party(1), 0.1)))
    assert told == (
        f"roce bus: rank 0 at 127.0.0.1:{port} (ports.fabric) was not there within 0.1 s "
        "(engine.rendezvous_timeout_ms)"
    )


def test_a_table_that_rank_0_did_not_prove_is_refused():
    with pytest.raises(JoinError, match="cluster token"):
        check_table(party(1), bytes(64), b"n" * 32)
