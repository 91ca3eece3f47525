"""Files that hold secrets: read whole, bounded, and only where nobody else can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dgpp.errors import ConfigError


def read_secret(path: str, key: str, most_bytes: int) -> bytes:
    """The content of the file at `path`, at most `most_bytes`; `key` is the key that names it.

    Raises ConfigError where it cannot be read, is no regular file, is larger, or is open to its
    group or to others.
    """
    file = Path(path).expanduser()
    try:
        # Opened without waiting: a pipe in its place would never be read to its end.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(most_bytes + 1) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise ConfigError(f"{key} = {path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{key} = {path}: not a regular file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{key} = {path}: others may read it; chmod 600")
    if len(content) > most_bytes:
        raise ConfigError(f"{key} = {path}: over {most_bytes} bytes")
    return content
