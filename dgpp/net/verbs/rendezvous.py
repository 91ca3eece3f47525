"""Ranks exchange their frames over TCP at rank 0, and wait until all are connected.

Rank 0 challenges, the rank proves that it knows the cluster token (the journal's handshake, whose
proof covers its frame) and sends the frame. When all have come each gets the table, proved too;
when all say that they are connected, each is told to go. Every wait has an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from dgpp.net.journal_errors import FrameError, JoinError
from dgpp.net.journal_frames import JOIN_BYTES, FrameReader, frame
from dgpp.net.journal_join import MisfitError, StrangerError
from dgpp.net.journal_messages import NONCE_BYTES, Challenge, Hello, Welcome
from dgpp.net.verbs import frames
from dgpp.net.verbs.frames import Kind, RankFrame
from dgpp.net.verbs.table import Party, Table, check_table

HELLO_S = 10.0
"""What a connection gets to say who it is and to send its frame."""
STRANGERS = 64
"""Connections at once that have not; more are hung up on."""
RETRY_S = 0.1
_PORT = "ports.fabric"
_LIMIT = "engine.rendezvous_timeout_ms"
_T = TypeVar("_T")


class _Link:
    """A connection that speaks in turns: nobody sends before the other side has."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def message(self, kinds: Any) -> Any:
        """A message of the journal, or the reason why there is none. Raises JoinError."""
        reader = FrameReader(kinds, JOIN_BYTES)
        head = await self._reader.readexactly(4)
        if head == Kind.REFUSED.value:
            await self._notice(head)
        reader.feed(head)
        while (message := reader.take()) is None:
            if not (data := await self._reader.read(JOIN_BYTES)):
                raise EOFError
            reader.feed(data)
        if reader.unread:
            raise FrameError("it speaks out of turn")
        return message

    async def frame(self) -> bytes:
        head = await self._reader.readexactly(frames.HEAD_BYTES)
        return head + await self._reader.readexactly(frames.frame_bytes(head) - len(head))

    async def notice(self, wanted: Kind) -> bytes:
        """The body of a notice. Raises JoinError with rank 0's reason, or FrameError."""
        return await self._notice(b"", wanted)

    async def _notice(self, begun: bytes, wanted: Kind = Kind.REFUSED) -> bytes:
        head = begun + await self._reader.readexactly(frames.NOTICE_BYTES - len(begun))
        rest = await self._reader.readexactly(frames.notice_bytes(head) - len(head))
        kind, body = frames.decode_notice(head + rest)
        if kind is Kind.REFUSED:
            raise JoinError(f"rank 0 says: {body.decode(errors='replace')}")
        if kind is not wanted:
            raise FrameError(f"a notice {kind.name} where {wanted.name} was due")
        return body

    async def refuse(self, reason: str) -> None:
        """Say why and hang up; whether it is heard does not matter any more."""
        body = reason.encode()[: frames.REASON_BYTES]
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self.send(frames.encode_notice(Kind.REFUSED, body))
        await self.close()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Gathering:
    """Rank 0's side. `gather` first, then `ready`, then `close`, which ends it in any case."""

    def __init__(self, listener: socket.socket, party: Party, timeout_s: float) -> None:
        self._listener, self._party, self._timeout_s = listener, party, timeout_s
        self._table = Table(party)
        self._links: dict[int, tuple[_Link, Hello]] = {}
        self._talks: dict[asyncio.Task[None], _Link] = {}
        self._server: asyncio.Server | None = None
        self._turned_away = ""
        self._changed = asyncio.Event()
        self._misfit: JoinError | None = None

    async def gather(self) -> tuple[RankFrame, ...]:
        """Everyone's frame, by rank. Raises JoinError naming who is missing or does not fit."""
        self._server = await asyncio.start_server(self._accept, sock=self._listener)
        await self._until(lambda: not self._table.missing, "did not come")
        for rank, (_link, hello) in list(self._links.items()):
            await self._tell(rank, frames.encode_notice(Kind.TABLE, self._table.body(hello)))
        return self._table.frames()

    async def ready(self) -> None:
        """All ranks have connected their queue pairs, this one too. Raises JoinError."""
        await self._until(lambda: not self._table.unconnected, "did not connect")
        for rank in list(self._links):
            await self._tell(rank, frames.encode_notice(Kind.GO))

    async def _tell(self, rank: int, notice: bytes) -> None:
        try:
            await self._links[rank][0].send(notice)
        except OSError as error:
            raise JoinError(f"roce bus: rank {rank} left: {error}") from error

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        talks = dict(self._talks)
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        for link in (*talks.values(), *(link for link, _hello in self._links.values())):
            await link.close()

    async def _until(self, done: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._misfit is None and not done():
                    self._changed.clear()
                    await self._changed.wait()
            error = self._misfit
        except TimeoutError:
            late = self._table.missing or self._table.unconnected
            names = ", ".join(f"rank {rank}" for rank in late)
            away = f"; last turned away: {self._turned_away}" if self._turned_away else ""
            error = JoinError(
                f"roce bus: {names} {what} within {self._timeout_s:g} s ({_LIMIT}){away}"
            )
        if error is not None:
            for link, _hello in list(self._links.values()):
                await link.refuse(str(error))
            raise error

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(reader, writer)
        if len(self._talks) >= STRANGERS + len(self._links):
            writer.close()
            return
        where = "{}:{}".format(*writer.get_extra_info("peername")[:2])
        talk = asyncio.get_running_loop().create_task(self._talk(link, where))
        self._talks[talk] = link
        talk.add_done_callback(self._talks.pop)

    async def _talk(self, link: _Link, where: str) -> None:
        """All that one rank says. Who does not belong here is turned away, the world waits on."""
        rank = -1
        try:
            async with asyncio.timeout(HELLO_S):
                challenge = Challenge(secrets.token_bytes(NONCE_BYTES))
                await link.send(frame(challenge))
                hello = await link.message(Hello)
                welcome = self._table.greet(hello, challenge)
                rank = hello.rank
                await link.send(frame(welcome))
                self._table.add(hello, await link.frame())
            self._links[rank] = link, hello
            self._changed.set()
            await link.notice(Kind.CONNECTED)
            self._table.connected.add(rank)
            self._changed.set()
        except MisfitError as error:
            # Said first: whoever hears of the misfit hangs up on all.
            await link.refuse(str(error))
            self._misfit = self._misfit or MisfitError(f"roce bus: {error}")
        except (StrangerError, FrameError, TimeoutError, EOFError, OSError) as error:
            self._turned_away = f"{where}: {error or type(error).__name__}"
            if rank in self._links and not self._table.missing:
                self._misfit = JoinError(f"roce bus: rank {rank} left before all were connected")
            elif rank >= 0:
                self._links.pop(rank, None)
                self._table.forget(rank)
            await link.refuse(str(error))
        self._changed.set()


class Joining:
    """Another rank's side. `join` first, then `ready`, then `close`, which ends it in any case."""

    def __init__(self, host: str, port: int, party: Party, timeout_s: float) -> None:
        self._host, self._port, self._party, self._timeout_s = host, port, party, timeout_s
        self._link: _Link | None = None

    async def join(self) -> tuple[RankFrame, ...]:
        """Everyone's frame, by rank. Raises JoinError with what rank 0 says, or its absence."""
        return await self._limited(self._join(), "gave no table")

    async def ready(self) -> None:
        """This rank is connected: returns when all are. Raises JoinError."""
        await self._limited(self._ready(), "did not say that all ranks are connected")

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _limited(self, talk: Awaitable[_T], what: str) -> _T:
        where = f"rank 0 at {self._host}:{self._port} ({_PORT})"
        try:
            async with asyncio.timeout(self._timeout_s):
                return await talk
        except TimeoutError as error:
            how = what if self._link is not None else "was not there"
            raise JoinError(
                f"roce bus: {where} {how} within {self._timeout_s:g} s ({_LIMIT})"
            ) from error
        except (EOFError, OSError) as error:
            raise JoinError(f"roce bus: {where} hung up: {error}") from error
        except (JoinError, FrameError) as error:
            raise JoinError(f"roce bus: {where}: {error}") from error

    async def _join(self) -> tuple[RankFrame, ...]:
        while self._link is None:
            try:
                streams = await asyncio.open_connection(self._host, self._port)
                self._link = _Link(*streams)
            except OSError:
                await asyncio.sleep(RETRY_S)
        link, identity = self._link, self._party.identity
        nonce = secrets.token_bytes(NONCE_BYTES)
        challenge = await link.message(Challenge)
        await link.send(frame(identity.hello(challenge, nonce)))
        identity.check_welcome(await link.message(Welcome), challenge, nonce)
        await link.send(frames.encode(self._party.frame))
        return check_table(self._party, await link.notice(Kind.TABLE), nonce)

    async def _ready(self) -> None:
        assert self._link is not None, "joined first"
        await self._link.send(frames.encode_notice(Kind.CONNECTED))
        await self._link.notice(Kind.GO)
