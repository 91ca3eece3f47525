"""Which ranks came to the bus's rendezvous, and whether they fit. No sockets here."""

from __future__ import annotations

import hashlib

import msgspec

from dgpp.net.journal_errors import FrameError, JoinError
from dgpp.net.journal_join import Identity, MisfitError, Roster
from dgpp.net.journal_messages import PROOF_BYTES, Challenge, Hello, Welcome
from dgpp.net.journal_token import proof, proves
from dgpp.net.verbs.frames import RankFrame, decode, decode_frames, encode

_TABLE = "bus table"


class Party(msgspec.Struct, frozen=True):
    """A rank as it comes: the version of dgpp, the cluster token and its own frame."""

    version: str
    token: bytes
    frame: RankFrame

    @property
    def identity(self) -> Identity:
        """For the handshake of the journal; its proof covers the frame too."""
        return Identity(
            rank=self.frame.rank,
            world=self.frame.world,
            version=self.version,
            settings=digest(encode(self.frame)),
            token=self.token,
        )


class Table:
    """Rank 0's: the frames that came."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._roster = Roster(party.identity, b"", {})
        self._frames = {0: encode(party.frame)}
        self.connected = {0}

    @property
    def missing(self) -> list[int]:
        """Ranks whose frame has not come, ascending."""
        return [rank for rank in range(self._party.frame.world) if rank not in self._frames]

    @property
    def unconnected(self) -> list[int]:
        return [rank for rank in range(self._party.frame.world) if rank not in self.connected]

    def greet(self, hello: Hello, challenge: Challenge) -> Welcome:
        """Raises StrangerError or MisfitError."""
        return self._roster.greet(hello, challenge)

    def add(self, hello: Hello, data: bytes) -> None:
        """Take in the frame of a rank that was greeted. Raises FrameError or MisfitError."""
        who = f"rank {hello.rank}"
        frame = decode(data)
        if digest(data) != hello.settings or frame.rank != hello.rank:
            raise MisfitError(f"{who} sent another frame than it announced")
        mine = self._party.frame
        if frame.world != mine.world:
            raise MisfitError(f"{who} has {len(frame.ends)} peers, rank 0 {len(mine.ends)}")
        if frame.lanes != mine.lanes:
            raise MisfitError(
                f"{who} has {frame.lanes} lanes, rank 0 {mine.lanes} (DGPP_ROCE_DEVICES: the same "
                "number on every node)"
            )
        if frame.geometry != mine.geometry:
            raise MisfitError(f"{who} has {frame.geometry}, rank 0 {mine.geometry}")
        self._frames[hello.rank] = data

    def forget(self, rank: int) -> None:
        """The rank's connection ended before the table was complete: it may come again."""
        self._roster.forget(rank)
        self._frames.pop(rank, None)

    def body(self, hello: Hello) -> bytes:
        """The complete table for the rank that said `hello`."""
        frames = b"".join(self._frames[rank] for rank in sorted(self._frames))
        return frames + proof(self._party.token, _TABLE, hello.nonce, frames)

    def frames(self) -> tuple[RankFrame, ...]:
        return tuple(decode(self._frames[rank]) for rank in sorted(self._frames))


def check_table(party: Party, body: bytes, nonce: bytes) -> tuple[RankFrame, ...]:
    """Everyone's frame, by rank, as rank 0 sent them. Raises FrameError or JoinError."""
    frames, sign = body[:-PROOF_BYTES], body[-PROOF_BYTES:]
    if not proves(sign, party.token, _TABLE, nonce, frames):
        raise JoinError("the bus table is not of a rank 0 that knows this rank's cluster token")
    ranks = decode_frames(frames)
    mine = party.frame
    if len(ranks) != mine.world or ranks[mine.rank] != mine:
        raise FrameError(f"the bus table does not have rank {mine.rank} as it announced itself")
    return ranks


def digest(frame: bytes) -> str:
    """What a hello says of the frame that will follow."""
    return hashlib.sha256(frame).hexdigest()
