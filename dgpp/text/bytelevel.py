"""Token ids to the raw bytes they stand for, in a byte-level vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _alphabet() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if chr(byte) not in table)
    table.update({chr(0x100 + index): byte for index, byte in enumerate(hidden)})
    return table


BYTE_OF = _alphabet()


def token_bytes(token: str) -> bytes:
    """The bytes of a vocabulary entry; one with characters off the alphabet is plain UTF-8."""
    try:
        return bytes([BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


class TokenBytes:
    """Bytes and text of ids, remembered. Ids that show nothing (specials, holes) give `b""`."""

    def __init__(
        self, lookup: Callable[[int], str | None], added: Mapping[int, str], hidden: frozenset[int]
    ) -> None:
        self._lookup = lookup
        self._added = added
        self._hidden = hidden
        self._raw: dict[int, bytes] = {}
        self._named: dict[int, tuple[str, bytes]] = {}

    def raw(self, token: int) -> bytes:
        """What `token` adds to the visible answer."""
        found = self._raw.get(token)
        if found is None:
            found = b"" if token in self._hidden else self._literal(token)
            self._raw[token] = found
        return found

    def named(self, token: int) -> tuple[str, bytes]:
        """Text and bytes of any id, hidden ones by name: how logprobs show alternatives."""
        found = self._named.get(token)
        if found is None:
            literal = self._literal(token)
            found = self._named[token] = (literal.decode("utf-8", "replace"), literal)
        return found

    def _literal(self, token: int) -> bytes:
        text = self._added.get(token)
        if text is None:
            text = self._lookup(token)
        return b"" if text is None else token_bytes(text)
