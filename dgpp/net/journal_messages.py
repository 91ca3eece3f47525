"""What rank 0 and the other ranks tell each other over the journal.

A connection opens with rank 0's Challenge and the rank's Hello; Welcome and Joined settle what the
world is made of. Ready and Warm start it, Ticks carry it, Stop and Stopped end it. Tokens,
admissions and retirements are never sent: every rank derives them from the same records. Floats
travel as the 64 bits they are.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from dgpp.cache.cold_ops import ColdDone
from dgpp.sched.request import Record, Submit


class Point(NamedTuple):
    """Where a rank's scheduler stands between two ticks: verdicts applied, and its digests."""

    steps: int
    operations: int
    prefixes: int


NONCE_BYTES = 32
PROOF_BYTES = 32


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """rank 0 → rank: prove that you know the token, over this `nonce`."""

    nonce: bytes


class Hello(msgspec.Struct, frozen=True, tag=True):
    """rank → rank 0: who I am. `settings` is the digest of the settings it came with."""

    version: str
    rank: int
    world: int
    settings: str
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """rank 0 → rank: its own proof, and the settings that hold from here on, as JSON."""

    proof: bytes
    settings: bytes


class Joined(msgspec.Struct, frozen=True, tag=True):
    """rank → rank 0: what this rank found itself to be, before it loads anything."""

    facts: dict[str, str]


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """Either way, last words of a connection that joins no world."""

    reason: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """rank → rank 0: all my actors are able to serve."""


class Warm(msgspec.Struct, frozen=True, tag=True):
    """rank 0 → rank: all ranks are ready; `facts` must be the rank's own."""

    facts: dict[str, str]


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Either way: alive."""


class Tick(msgspec.Struct, frozen=True, tag=True):
    """rank 0 → rank: tick number `tick`, to be applied when exactly `steps` verdicts are.

    `operations` and `prefixes` are rank 0's digests at that moment. Each prompt travels once:
    submit i continues `prompts[prompt_of[i]]` and has none of its own.
    """

    tick: int
    steps: int
    operations: int
    prefixes: int = 0
    prompts: tuple[bytes, ...] = ()
    prompt_of: tuple[int, ...] = ()
    submits: tuple[Submit, ...] = ()
    cancels: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    cold: tuple[ColdDone, ...] = ()

    @classmethod
    def of(cls, record: Record, point: Point) -> Tick:
        numbers: dict[bytes, int] = {}
        for submit in record.submits:
            numbers.setdefault(submit.prompt, len(numbers))
        return cls(
            record.tick,
            *point,
            tuple(numbers),
            tuple(numbers[submit.prompt] for submit in record.submits),
            tuple(replace(submit, prompt=b"") for submit in record.submits),
            record.cancels,
            record.stops,
            record.cold,
        )

    def record(self) -> Record:
        """Raises ValueError where submits and prompts do not fit together."""
        numbers = self.prompt_of
        if len(numbers) != len(self.submits):
            raise ValueError(f"{len(self.submits)} submits name {len(numbers)} prompts")
        if any(not 0 <= number < len(self.prompts) for number in numbers):
            raise ValueError(f"prompts {numbers} of {len(self.prompts)}")
        submits = tuple(
            replace(submit, prompt=self.prompts[number])
            for number, submit in zip(numbers, self.submits, strict=True)
        )
        return Record(self.tick, submits, self.cancels, self.stops, self.cold)


class Applied(msgspec.Struct, frozen=True, tag=True):
    """rank → rank 0: all ticks below `ticks` are applied."""

    ticks: int


class ColdEnd(msgspec.Struct, frozen=True, tag=True):
    """rank → rank 0: operation `op` of the disk tier ended here. Of the inventory, `points` are
    those that this rank's list passed, the latest last."""

    op: int
    ok: bool
    points: tuple[int, ...] = ()


class Leave(msgspec.Struct, frozen=True, tag=True):
    """rank → rank 0: somebody asked this rank to end, by `why`; end the world in order. Before the
    rank serves it does not wait for that."""

    why: str


class Stop(msgspec.Struct, frozen=True, tag=True):
    """rank 0 → rank: no more ticks follow. The fields are rank 0's last, as a Tick's.

    `idle`: nothing is outstanding on rank 0, so that the digests of all ranks can be compared.
    """

    ticks: int
    steps: int
    operations: int
    prefixes: int
    idle: bool


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """rank → rank 0: everything up to Stop is applied; this rank's digests."""

    ticks: int
    steps: int
    operations: int
    prefixes: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Either way: rank `rank` failed by `cause`, `age_s` seconds ago; the world is over."""

    rank: int
    cause: str
    age_s: float = 0.0

    @property
    def words(self) -> str:
        """What a rank says that it releases."""
        return f"rank {self.rank} ended the world: {self.cause}"


JoinFromLeader: TypeAlias = Challenge | Welcome | Rejected
"""Once a rank has its Welcome it hears Ended instead: by then its scheduler may be the one to."""
LAST_WORDS = (Ended, Leave)
"""What a rank's supervisor may say where its scheduler cannot."""

JoinFromRank: TypeAlias = Hello | Joined | Rejected | Leave
FromLeader: TypeAlias = Warm | Tick | Beat | Stop | Ended
FromRank: TypeAlias = Ready | Beat | Applied | ColdEnd | Leave | Stopped | Ended
