"""The secret that ranks of one world share, and the proof that one side knows it.

The token itself never travels: each side answers the other's random challenge.
"""

from __future__ import annotations

import hashlib
import hmac

from dgpp.config.secret_file import read_secret
from dgpp.errors import ConfigError

KEY = "engine.cluster_token_file"
MIN_BYTES = 16
MAX_BYTES = 4096


def load_token(path: str) -> bytes:
    """The token in the file at `path`, blanks around it cut off.

    Raises ConfigError where it cannot be read, others may read it, or it is too short to be one.
    """
    token = read_secret(path, KEY, MAX_BYTES).strip()
    if not MIN_BYTES <= len(token) <= MAX_BYTES:
        raise ConfigError(
            f"{KEY} = {path}: a token has {MIN_BYTES} to {MAX_BYTES} bytes, this one {len(token)}"
        )
    return token


def proof(token: bytes, side: str, *parts: bytes) -> bytes:
    """HMAC-SHA-256 over `parts`; `side` keeps one side's proof from serving as the other's."""
    keyed = hmac.new(token, digestmod=hashlib.sha256)
    for part in (side.encode(), *parts):
        keyed.update(len(part).to_bytes(8, "big"))
        keyed.update(part)
    return keyed.digest()


def proves(given: bytes, token: bytes, side: str, *parts: bytes) -> bool:
    """Whether `given` is `proof(token, side, *parts)`, in constant time."""
    return hmac.compare_digest(given, proof(token, side, *parts))
