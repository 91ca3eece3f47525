"""Ranks come together over real sockets, and whoever does not fit is turned away by name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from actors import journal_join
from actors.journal_ends import JournalEnds
from actors.journal_join import Gathering, Joining, listen
from dgpp.errors import ConfigError
from dgpp.net.journal_errors import JoinError, ReleasedError
from dgpp.net.journal_frames import FrameReader, frame
from dgpp.net.journal_join import Identity, Roster
from dgpp.net.journal_messages import Applied, Beat, Ended, FromLeader, Leave

TOKEN = b"0123456789abcdef"
FACTS = {"settings": "aa"}


def identity(rank=1, world=3, version="1", token=TOKEN):
    return Identity(rank=rank, world=world, version=version, settings="aa", token=token)


class Host:
    """Rank 0 of a world of three, gathering on a free port."""

    def __init__(self, timeout_s=5.0):
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        roster = Roster(identity(0), b"{}", FACTS)
        self.left = []
        gathering = Gathering(self.listener, roster, timeout_s, self.left.append)
        self.gathering = asyncio.ensure_future(gathering.gather())

    def joining(self, timeout_s=5.0, **who):
        return Joining("127.0.0.1", self.port, identity(**who), timeout_s)

    async def join(self, rank):
        joining = self.joining(rank=rank)
        assert await joining.connect() == b"{}"
        return await joining.join(FACTS)

    async def raw(self, data):
        """What comes back to `data` until the other side hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        got = await reader.read()
        writer.close()
        await writer.wait_closed()
        return got


def run(play):
    return asyncio.run(play())


def test_all_join_and_their_first_words_are_handed_on():
    async def play():
        host = Host()
        second = await host.join(2)
        second.socket.setblocking(True)
        second.socket.sendall(frame(Applied(1)))
        first = await host.join(1)
        connections = await host.gathering
        assert list(connections) == [1, 2]
        # Both directions of the sockets work, beginning with what was already said.
        with connections[2].socket as at_host, second.socket:
            at_host.setblocking(True)
            reader = FrameReader(Applied, 100, connections[2].unread)
            while (said := reader.take()) is None:
                reader.feed(at_host.recv(100))
            assert said == Applied(1)
            at_host.sendall(frame(Beat()))
            reader = FrameReader(FromLeader, 100, second.unread)
            reader.feed(second.socket.recv(100))
            assert reader.take() == Beat()
        first.socket.close()
        connections[1].socket.close()

    run(play)


def test_ranks_may_come_before_rank_0_listens():
    async def play():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        early = Joining("127.0.0.1", port, identity(world=2), 5.0)
        connecting = asyncio.ensure_future(early.connect())
        await asyncio.sleep(0.25)
        roster = Roster(identity(0, world=2), b"{}", FACTS)
        gathering = Gathering(listen("127.0.0.1", port), roster, 5.0, str)
        gathered = asyncio.ensure_future(gathering.gather())
        assert await connecting == b"{}"
        mine = await early.join(FACTS)
        theirs = await gathered
        mine.socket.close()
        theirs[1].socket.close()

    run(play)


def test_who_is_missing_is_named_with_the_last_one_turned_away():
    async def play():
        host = Host(timeout_s=0.6)
        connection = await host.join(2)
        with pytest.raises(JoinError, match="rank 0 turned rank 1 away: wrong cluster token"):
            await host.joining(token=b"x" * 16).connect()
        with pytest.raises(JoinError) as failed:
            await host.gathering
        assert str(failed.value).startswith(
            "engine.rendezvous_timeout_ms: not all ranks came within 0.6 s: joined: 2; missing: 1; "
            "last turned away: 127.0.0.1:"
        )
        assert str(failed.value).endswith(": wrong cluster token")
        # The rank that had joined sees the connection end.
        connection.socket.setblocking(True)
        while connection.socket.recv(1000):
            pass
        connection.socket.close()

    run(play)


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ({"version": "2"}, "rank 1 runs version 2, rank 0 1"),
        ({"world": 4}, "rank 1 is of a world of 4, this one has 3"),
        ({"rank": 7}, "rank 7 is outside 1..2"),
        ({"rank": 2}, "rank 2 came twice"),
    ],
)
def test_a_rank_that_does_not_fit_ends_the_start_on_both_sides(who, said):
    async def play():
        host = Host()
        connection = await host.join(2)
        began = time.monotonic()
        with pytest.raises(JoinError, match=f"turned rank . away: {said}"):
            await host.joining(**who).connect()
        with pytest.raises(JoinError, match=said):
            await host.gathering
        assert time.monotonic() - began < 2
        connection.socket.close()

    run(play)


def test_other_facts_end_the_start():
    async def play():
        host = Host()
        joining = host.joining()
        await joining.connect()
        connection = await joining.join({"settings": "bb"})
        said = "rank 1 differs from rank 0: settings is bb, on rank 0 aa"
        with pytest.raises(JoinError, match=said):
            await host.gathering
        assert await heard(connection) == f"rank 0 ended the world: {said}"
        connection.socket.close()

    run(play)


def test_a_rank_that_cannot_take_part_says_why():
    async def play():
        host = Host()
        joining = host.joining()
        await joining.connect()
        await joining.reject("MemoryPlanError: 10 GiB are missing")
        with pytest.raises(JoinError, match="rank 1 cannot take part: MemoryPlanError: 10 GiB"):
            await host.gathering

    run(play)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(Beat()),
        b"DGJ\x03\x7f\xff\xff\xff\0\0\0\0\0\0\0\0",
        b"DGJ\x63" * 9,
    ],
)
def test_garbage_is_turned_away_and_the_world_still_forms(data):
    async def play():
        host = Host()
        answer = await host.raw(data)
        assert b"Rejected" in answer
        mine = [await host.join(1), await host.join(2)]
        theirs = (await host.gathering).values()
        for connection in (*mine, *theirs):
            connection.socket.close()

    run(play)


async def heard(connection):
    """What a rank's supervisor finds said over its connection, which it leaves where it is."""
    ends = JournalEnds({0: connection})
    for _ in range(200):
        if found := ends.heard():
            assert ends.heard() == found
            return found.words.words
        await asyncio.sleep(0.01)
    return None


def test_last_words_are_found_wherever_they_lie():
    async def play():
        host = Host()
        mine = [await host.join(1), await host.join(2)]
        theirs = await host.gathering
        ends = JournalEnds(theirs)
        assert ends.heard() is None
        mine[1].socket.send(frame(Beat(), 1) + frame(Ended(2, "engine of rank 2 died", 0.5)))
        await asyncio.sleep(0.05)
        assert ends.heard() == (2, Ended(2, "engine of rank 2 died", 0.5))
        mine[0].socket.close()
        await asyncio.sleep(0.05)
        # What was said goes before what was not.
        assert ends.heard() == (2, Ended(2, "engine of rank 2 died", 0.5))
        alone = JournalEnds({1: theirs[1]})
        assert alone.heard() == (1, None)
        mine[1].socket.close()
        ends.close()

    run(play)


def test_a_world_that_is_asked_to_end_says_so_to_the_ranks_that_came():
    async def play():
        host = Host()
        connection = await host.join(1)
        greeted = host.joining(rank=2)
        await greeted.connect()
        host.gathering.cancel("was asked to end: signal 15")
        with pytest.raises(asyncio.CancelledError):
            await host.gathering
        words = "rank 0 ended the world: the world does not start: was asked to end: signal 15"
        assert await heard(connection) == words
        with pytest.raises(ReleasedError, match=words):
            await greeted.join(FACTS)
        connection.socket.close()

    run(play)


@pytest.mark.parametrize("joined", [False, True])
def test_a_rank_that_is_asked_to_end_says_so(joined, monkeypatch):
    monkeypatch.setattr(journal_join, "LOOK_S", 0.01)

    async def play():
        host = Host()
        if joined:
            connection = await host.join(1)
            ends = JournalEnds({0: connection})
            ends.say(Leave("was asked to end: signal 15"))
            ends.close()
        else:
            joining = host.joining()
            await joining.connect()
            await joining.leave("was asked to end: signal 15")
        for _ in range(200):
            await asyncio.sleep(0.0 if host.left else 0.01)
        assert host.left == ["rank 1: was asked to end: signal 15"]
        host.gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await host.gathering

    run(play)


def test_last_words_of_a_failure_end_the_start(monkeypatch):
    monkeypatch.setattr(journal_join, "LOOK_S", 0.01)

    async def play():
        host = Host()
        ends = JournalEnds({0: await host.join(1)})
        ends.say(Ended(1, "engine of rank 1 was killed by signal 9"))
        with pytest.raises(JoinError, match="rank 1: engine of rank 1 was killed by signal 9"):
            await host.gathering
        ends.close()

    run(play)


@pytest.mark.parametrize("count", [4, 129])
def test_silent_connections_hold_up_nobody(count):
    async def play():
        host = Host()
        silent = [await asyncio.open_connection("127.0.0.1", host.port) for _ in range(count)]
        began = time.monotonic()
        mine = [await host.join(1), await host.join(2)]
        theirs = (await host.gathering).values()
        assert time.monotonic() - began < journal_join.HELLO_S / 4
        for connection in (*mine, *theirs):
            connection.socket.close()
        for _, writer in silent:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    run(play)


def test_a_rank_that_gave_way_to_strangers_comes_again(monkeypatch):
    monkeypatch.setattr(journal_join, "STRANGERS", 1)
    hello = Identity.hello
    crowds = []

    async def play():
        host = Host()

        def crowded(self, challenge, nonce):
            # Another connection is taken between the challenge and this rank's answer.
            if not crowds:
                crowds.append(socket.create_connection(("127.0.0.1", host.port)))
                time.sleep(0.01)
            return hello(self, challenge, nonce)

        monkeypatch.setattr(Identity, "hello", crowded)
        mine = [await host.join(1), await host.join(2)]
        theirs = (await host.gathering).values()
        for connection in (*mine, *theirs, *crowds):
            getattr(connection, "socket", connection).close()

    run(play)


def test_a_rank_that_hangs_up_may_come_again(monkeypatch):
    monkeypatch.setattr(journal_join, "LOOK_S", 0.05)

    async def play():
        host = Host()
        first = await host.join(1)
        first.socket.close()
        await asyncio.sleep(0.3)
        mine = [await host.join(2), await host.join(1)]
        theirs = (await host.gathering).values()
        for connection in (*mine, *theirs):
            connection.socket.close()

    run(play)


def test_a_rank_without_rank_0_names_where_it_looked():
    async def play():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with pytest.raises(JoinError, match=f"rank 0 was not found at 127.0.0.1:{port} within 0.3"):
            await Joining("127.0.0.1", port, identity(), 0.3).connect()

    run(play)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a journal frame"),
        (b"", "did not answer|was not found"),
        (b"DGJ\x01" + b"\0" * 8, "journal protocol 1, this rank speaks 3"),
    ],
)
def test_something_else_at_rank_0s_address_is_named(answer, said):
    async def play():
        talks = set()

        async def speak(reader, writer):
            talks.add(asyncio.current_task())
            writer.write(answer)
            await reader.read()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(JoinError, match=said):
            await Joining("127.0.0.1", port, identity(), 0.5).connect()
        await asyncio.gather(*talks)
        server.close()
        await server.wait_closed()

    run(play)


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"ports.journal: cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)
