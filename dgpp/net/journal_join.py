"""How ranks join a world: who may, as which rank, with whose settings. No sockets here."""

from __future__ import annotations

from collections.abc import Mapping

from dgpp.net.journal_errors import JoinError
from dgpp.net.journal_messages import (
    NONCE_BYTES,
    Challenge,
    Hello,
    Joined,
    Welcome,
)
from dgpp.net.journal_token import proof, proves

_HELLO = "hello"
_WELCOME = "welcome"


class StrangerError(JoinError):
    """A connection that did not prove to be of this world: turned away, the world waits on."""


class MisfitError(JoinError):
    """A rank of this world that cannot take part: it ends the start, waiting would not help."""


class Identity:
    """What a rank says of itself while it joins. `settings` is a digest."""

    def __init__(self, *, rank: int, world: int, version: str, settings: str, token: bytes) -> None:
        self.rank = rank
        self.world = world
        self.version = version
        self.settings = settings
        self.token = token

    def hello(self, challenge: Challenge, nonce: bytes) -> Hello:
        """The answer to rank 0's challenge. Raises JoinError."""
        _check_nonce(challenge.nonce)
        bare = Hello(self.version, self.rank, self.world, self.settings, nonce, b"")
        sign = proof(self.token, _HELLO, challenge.nonce, *_parts(bare))
        return Hello(self.version, self.rank, self.world, self.settings, nonce, sign)

    def check_welcome(self, welcome: Welcome, challenge: Challenge, nonce: bytes) -> None:
        """Raises JoinError unless rank 0 knows the token too."""
        parts = (nonce, challenge.nonce, welcome.settings)
        if not proves(welcome.proof, self.token, _WELCOME, *parts):
            raise JoinError("rank 0 does not know this rank's cluster token")


class Roster:
    """Rank 0's list of the ranks that came.

    `settings` is the JSON that every rank adopts, `facts` what each must then find itself to be.
    """

    def __init__(self, identity: Identity, settings: bytes, facts: Mapping[str, str]) -> None:
        self._identity = identity
        self._settings = settings
        self._facts = facts
        self._greeted: set[int] = set()
        self._joined: set[int] = set()

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined yet, ascending."""
        return [rank for rank in range(1, self._identity.world) if rank not in self._joined]

    def progress(self) -> str:
        """How far the world has come together, for people."""
        joined = ", ".join(map(str, sorted(self._joined))) or "none"
        missing = ", ".join(map(str, self.missing)) or "none"
        return f"joined: {joined}; missing: {missing}"

    def greet(self, hello: Hello, challenge: Challenge) -> Welcome:
        """Take in a rank; `forget` it when its connection ends before it has joined.

        Raises StrangerError or MisfitError, and then nothing has changed.
        """
        mine = self._identity
        if not proves(hello.proof, mine.token, _HELLO, challenge.nonce, *_parts(hello)):
            raise StrangerError("wrong cluster token")
        _check_nonce(hello.nonce)
        who = f"rank {hello.rank}"
        if hello.version != mine.version:
            raise MisfitError(f"{who} runs version {hello.version}, rank 0 {mine.version}")
        if hello.world != mine.world:
            raise MisfitError(f"{who} is of a world of {hello.world}, this one has {mine.world}")
        if not 1 <= hello.rank < mine.world:
            raise MisfitError(f"{who} is outside 1..{mine.world - 1}")
        if hello.rank in self._greeted:
            raise MisfitError(f"{who} came twice")
        self._greeted.add(hello.rank)
        sign = proof(mine.token, _WELCOME, hello.nonce, challenge.nonce, self._settings)
        return Welcome(sign, self._settings)

    def adopts(self, hello: Hello) -> bool:
        """Whether the rank came with other settings, which give way to rank 0's."""
        return hello.settings != self._identity.settings

    def join(self, rank: int, joined: Joined) -> None:
        """The rank is complete. Raises MisfitError where it found itself to be something else."""
        if difference := differing(self._facts, joined.facts):
            raise MisfitError(f"rank {rank} differs from rank 0: {difference}")
        self._joined.add(rank)

    def forget(self, rank: int) -> None:
        """The rank's connection ended: it may come again."""
        self._greeted.discard(rank)
        self._joined.discard(rank)


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What `theirs` says differently from rank 0's `ours`, by name; empty where nothing."""
    names = sorted({*ours, *theirs})
    return "; ".join(
        f"{name} is {theirs.get(name, 'absent')}, on rank 0 {ours.get(name, 'absent')}"
        for name in names
        if ours.get(name) != theirs.get(name)
    )


def _parts(hello: Hello) -> tuple[bytes, ...]:
    """What a hello's proof covers: all it says."""
    texts = (hello.version, str(hello.rank), str(hello.world), hello.settings)
    return (hello.nonce, *(text.encode() for text in texts))


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise StrangerError(f"a nonce of {len(nonce)} bytes, expected {NONCE_BYTES}")
