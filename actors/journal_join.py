"""Ranks come together over TCP: rank 0 listens, the others connect; both hand their sockets on.

Plain non-blocking sockets, because a socket changes its owner when all have joined: from this
process to the one that runs the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import msgspec

from actors.journal_link import no_delay
from dgpp.errors import ConfigError
from dgpp.net.journal_errors import FrameError, JoinError, ReleasedError
from dgpp.net.journal_frames import JOIN_BYTES, FrameReader, frame
from dgpp.net.journal_join import Identity, MisfitError, Roster
from dgpp.net.journal_messages import (
    LAST_WORDS,
    NONCE_BYTES,
    Beat,
    Challenge,
    Ended,
    FromLeader,
    FromRank,
    Hello,
    Joined,
    JoinFromLeader,
    JoinFromRank,
    Leave,
    Rejected,
    Welcome,
)

HELLO_S = 10.0
"""What a connection gets to say who it is."""

CONNECT_S = 5.0
RETRY_S = 0.1
LOOK_S = 0.1
"""How often rank 0 looks whether a rank that has joined is still there; every tenth time it says
that it is there itself."""
STRANGERS = 64
"""Connections that have not said who they are; where more come, the one that has been silent for
longest gives way, so that whoever says hello properly waits for nobody."""

_READ_BYTES = 64 << 10
_log = logging.getLogger("dgpp.journal")


class Connection(NamedTuple):
    """A joined rank's connection, for the scheduler: its socket and what had come in already."""

    socket: socket.socket
    unread: bytes


def listen(host: str, port: int, key: str = "ports.journal") -> socket.socket:
    """Rank 0's socket at the port that `key` says. Raises ConfigError where it cannot be had."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(STRANGERS)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{key}: cannot listen on {host}:{port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


class _Stream:
    """Whole messages over a non-blocking socket."""

    def __init__(self, connection: socket.socket, messages: Any) -> None:
        connection.setblocking(False)
        no_delay(connection)
        self.socket = connection
        self.reader = FrameReader(messages, JOIN_BYTES)

    async def send(self, message: msgspec.Struct) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, frame(message))

    async def receive(self) -> Any:
        """The next message. Raises FrameError, or EOFError at the end of the stream."""
        while (message := self.reader.take()) is None:
            await self.read()
        return message

    async def read(self) -> None:
        """Take in what arrives next. Raises EOFError."""
        data = await asyncio.get_running_loop().sock_recv(self.socket, _READ_BYTES)
        if not data:
            raise EOFError
        self.reader.feed(data)

    async def part(self, last_words: msgspec.Struct) -> None:
        """Say why and close; whether it is heard does not matter any more."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self.send(last_words)
        self.socket.close()


def last_words(connection: Connection, messages: Any) -> Ended | Leave | None:
    """Those that stand in what nobody has read yet. Takes nothing: what comes from a rank that has
    joined is for the scheduler. Raises EOFError where there is nothing but the stream's end."""
    reader = FrameReader(messages, JOIN_BYTES, connection.unread)
    data: bytes | None
    try:
        data = connection.socket.recv(JOIN_BYTES, socket.MSG_PEEK)
    except BlockingIOError:
        data = None
    except ConnectionError:
        data = b""
    reader.feed(data or b"")
    with contextlib.suppress(FrameError):
        while (message := reader.take()) is not None:
            if isinstance(message, LAST_WORDS):
                return message
    if data == b"":
        raise EOFError
    return None


class Gathering:
    """Rank 0's side: takes connections until every rank has joined. `on_leave` hears which rank was
    asked to end meanwhile."""

    def __init__(
        self,
        listener: socket.socket,
        roster: Roster,
        timeout_s: float,
        on_leave: Callable[[str], object],
    ) -> None:
        self._listener = listener
        self._roster = roster
        self._timeout_s = timeout_s
        self._on_leave = on_leave
        self._streams: dict[int, _Stream] = {}
        self._talks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], _Stream] = {}
        self._crowded = False
        self._all = asyncio.Event()
        self._misfit: asyncio.Future[JoinError] = asyncio.get_running_loop().create_future()
        self._turned_away = ""

    async def gather(self) -> dict[int, Connection]:
        """Every rank's connection. Raises JoinError naming who is missing or does not fit."""
        accepting = asyncio.ensure_future(self._accept())
        complete = asyncio.ensure_future(self._all.wait())
        try:
            await asyncio.wait(
                (complete, accepting, self._misfit),
                timeout=self._timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if accepting.done():
                accepting.result()
            if not complete.done():
                raise self._misfit.result() if self._misfit.done() else self._absence()
        except BaseException as error:
            await self._end(complete, accepting)
            ended = Ended(0, f"the world does not start: {error}")
            for stream in self._streams.values():
                await stream.part(ended)
            raise
        finally:
            self._listener.close()
        await self._end(complete, accepting)
        return {
            rank: Connection(stream.socket, stream.reader.unread)
            for rank, stream in sorted(self._streams.items())
        }

    def _absence(self) -> JoinError:
        away = f"; last turned away: {self._turned_away}" if self._turned_away else ""
        return JoinError(
            f"engine.rendezvous_timeout_ms: not all ranks came within {self._timeout_s:g} s: "
            f"{self._roster.progress()}{away}"
        )

    async def _end(self, *more: asyncio.Task[Any]) -> None:
        tasks = (*self._talks, *more)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (host, port) = await loop.sock_accept(self._listener)
            except OSError as error:
                raise JoinError(f"ports.journal: {error.strerror}") from error
            stream = _Stream(connection, JoinFromRank)
            if len(self._strangers) >= STRANGERS:
                self._make_room()
            talk = loop.create_task(self._talk(stream, f"{host}:{port}"))
            self._talks.add(talk)
            self._strangers[talk] = stream
            talk.add_done_callback(self._talked)

    def _make_room(self) -> None:
        """The oldest stranger gives way; a rank among them comes again."""
        next(talk for talk in self._strangers if not talk.cancelling()).cancel()
        if not self._crowded:
            self._crowded = True
            _log.warning(
                "journal: more than %d connections say nothing: the oldest give way", STRANGERS
            )

    def _talked(self, talk: asyncio.Task[None]) -> None:
        self._talks.discard(talk)
        if (stranger := self._strangers.pop(talk, None)) is not None:
            stranger.socket.close()

    async def _talk(self, stream: _Stream, where: str) -> None:
        rank = None
        this = asyncio.current_task()
        assert this is not None
        try:
            async with asyncio.timeout(HELLO_S):
                challenge = Challenge(secrets.token_bytes(NONCE_BYTES))
                await stream.send(challenge)
                hello = await stream.receive()
                if not isinstance(hello, Hello):
                    raise FrameError(f"{type(hello).__name__} instead of a hello")
                welcome = self._roster.greet(hello, challenge)
                rank = hello.rank
                del self._strangers[this]
                self._streams[rank] = stream
                await stream.send(welcome)
            if self._roster.adopts(hello):
                _log.info("rank %d came with other settings and adopts rank 0's", rank)
            await self._settle(stream, rank, where)
        except MisfitError as error:
            await self._turn_away(stream, rank, where, str(error))
            self._end_by(error)
        except (JoinError, FrameError, EOFError, TimeoutError, OSError) as error:
            silent = "it hung up" if isinstance(error, EOFError) else "it said nothing"
            why = str(error) or silent
            await self._turn_away(stream, rank, where, why)

    async def _settle(self, stream: _Stream, rank: int, where: str) -> None:
        """Hear that the rank is complete, then keep the connection alive until all are."""
        joined = await stream.receive()
        if isinstance(joined, Rejected):
            raise MisfitError(f"rank {rank} cannot take part: {joined.reason}")
        if isinstance(joined, Leave):
            self._leave(rank, joined)
        if not isinstance(joined, Joined):
            raise FrameError(f"{type(joined).__name__} from rank {rank}, which had not joined")
        self._roster.join(rank, joined)
        _log.info("rank %d joined from %s; %s", rank, where, self._roster.progress())
        if not self._roster.missing:
            self._all.set()
            return
        for look in itertools.count():
            if look % 10 == 0:
                await stream.send(Beat())
            await asyncio.sleep(LOOK_S)
            match last_words(Connection(stream.socket, stream.reader.unread), FromRank):
                case Ended(at, cause):
                    raise MisfitError(f"rank {at}: {cause}")
                case Leave() as leave:
                    self._leave(rank, leave)

    def _leave(self, rank: int, leave: Leave) -> NoReturn:
        """The world is to end, and with it this talk."""
        self._on_leave(f"rank {rank}: {leave.why}")
        raise EOFError

    async def _turn_away(self, stream: _Stream, rank: int | None, where: str, why: str) -> None:
        if rank is None:
            self._turned_away = f"{where}: {why}"
        else:
            self._streams.pop(rank, None)
            self._roster.forget(rank)
        _log.warning("journal: %s turned away: %s", where if rank is None else f"rank {rank}", why)
        # Once it was welcome, its scheduler may be the one that hears.
        await stream.part(Rejected(why) if rank is None else Ended(0, why))

    def _end_by(self, error: JoinError) -> None:
        if not self._misfit.done():
            self._misfit.set_result(error)


class Joining:
    """Another rank's side: `connect`, adopt the settings it gives, then `join`."""

    def __init__(self, host: str, port: int, identity: Identity, timeout_s: float) -> None:
        self._address = (host, port)
        self._identity = identity
        self._timeout_s = timeout_s
        self._stream: _Stream | None = None

    async def connect(self) -> bytes:
        """Find rank 0, prove who we are, and return the settings that hold. Raises JoinError."""
        try:
            return await self._introduce()
        except BaseException:
            if self._stream is not None:
                self._stream.socket.close()
            raise

    async def _introduce(self) -> bytes:
        where = "{}:{}".format(*self._address)
        try:
            async with asyncio.timeout(self._timeout_s):
                heard = await self._say_hello()
        except TimeoutError:
            found = "did not answer" if self._stream else "was not found"
            raise JoinError(
                f"engine.rendezvous_timeout_ms: rank 0 {found} at {where} within "
                f"{self._timeout_s:g} s"
            ) from None
        except FrameError as error:
            raise JoinError(f"rank 0 at {where}: {error}") from error
        welcome, challenge, nonce = heard
        if not isinstance(welcome, Welcome):
            raise JoinError(f"rank 0 at {where}: {type(welcome).__name__} instead of a welcome")
        self._identity.check_welcome(welcome, challenge, nonce)
        return welcome.settings

    async def _say_hello(self) -> tuple[Any, Challenge, bytes]:
        """What rank 0 answers, to which challenge and nonce. Where it hangs up, so many strangers
        came that this connection gave way: again."""
        while True:
            self._stream, challenge = await self._reach()
            nonce = secrets.token_bytes(NONCE_BYTES)
            try:
                await self._stream.send(self._identity.hello(challenge, nonce))
                return await self._hear(), challenge, nonce
            except (EOFError, ConnectionError):
                self._stream.socket.close()
            await asyncio.sleep(RETRY_S)

    async def join(self, facts: dict[str, str]) -> Connection:
        """This rank is complete; the connection is the scheduler's from now on. Raises JoinError
        where rank 0 is gone, ReleasedError where it said why."""
        stream = self._stream
        assert stream is not None
        connection = Connection(stream.socket, stream.reader.unread)
        try:
            if isinstance(ended := last_words(connection, FromLeader), Ended):
                raise ReleasedError(ended.words)
            await stream.send(Joined(facts))
        except (EOFError, OSError) as error:
            stream.socket.close()
            raise JoinError(f"rank 0 hung up: {error}") from error
        except ReleasedError:
            stream.socket.close()
            raise
        return connection

    async def reject(self, reason: str) -> None:
        """Tell rank 0 why this rank cannot take part."""
        if self._stream is not None:
            await self._stream.part(Rejected(reason))

    async def leave(self, why: str) -> None:
        """Tell rank 0 why this rank ends before it has joined."""
        if self._stream is not None:
            await self._stream.part(Leave(why))

    async def _hear(self) -> Any:
        assert self._stream is not None
        message = await self._stream.receive()
        if isinstance(message, Rejected):
            raise JoinError(f"rank 0 turned rank {self._identity.rank} away: {message.reason}")
        return message

    async def _reach(self) -> tuple[_Stream, Challenge]:
        """Connect until somebody listens there who speaks the journal's language."""
        loop = asyncio.get_running_loop()
        while True:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            connection.setblocking(False)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await loop.sock_connect(connection, self._address)
                    stream = _Stream(connection, JoinFromLeader)
                    challenge = await stream.receive()
                if not isinstance(challenge, Challenge):
                    raise FrameError(f"{type(challenge).__name__} instead of a challenge")
            except (OSError, TimeoutError, EOFError):
                connection.close()
                await asyncio.sleep(RETRY_S)
                continue
            except BaseException:
                connection.close()
                raise
            return stream, challenge
