"""The operation stream: every decision as a line, folded into one digest that ranks compare."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from dgpp.sched.verdict import Finish

Sink = Callable[[bytes], None]


class OperationStream:
    """Lines `T <id> <token> <produced>`, `R <id> <reason ordinal> <produced>`, `W <id> <tokens>`
    for a reservation grown to so many tokens, and `X` of the prefix cache.

    The fold is BLAKE2b cut to 64 bits over all bytes so far. A byte-wise FNV-1a would say the
    same, but in Python it costs microseconds a line, where one hash update a step costs one.
    `sink` gets the bytes of every fold, for whoever keeps the file.
    """

    __slots__ = ("_digest", "_hash", "_lines", "_sink")

    def __init__(self, sink: Sink | None = None) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._digest: int | None = None
        self._lines: list[str] = []
        self._sink = sink

    def token(self, choice_id: str, token: int, produced: int) -> None:
        self._lines.append(f"T {choice_id} {token} {produced}\n")

    def retire(self, choice_id: str, reason: Finish, produced: int) -> None:
        self._lines.append(f"R {choice_id} {int(reason)} {produced}\n")

    def grow(self, choice_id: str, tokens: int) -> None:
        self._lines.append(f"W {choice_id} {tokens}\n")

    def cache(self, operation: str, owner: str, position: int, snapshot: int) -> None:
        """A decision of the prefix cache: `X <operation> <owner> <position> <snapshot>`."""
        self._lines.append(f"X {operation} {owner} {position} {snapshot}\n")

    def fold(self) -> None:
        """Fold the lines since the last call."""
        if self._lines:
            text = "".join(self._lines).encode()
            self._lines.clear()
            self._hash.update(text)
            self._digest = None
            if self._sink is not None:
                self._sink(text)

    def digest(self) -> int:
        """The fold so far, as an unsigned 64-bit number."""
        if self._digest is None:
            self._digest = int.from_bytes(self._hash.digest(), "little")
        return self._digest
