"""Writes the site's `.env` file: some keys set, every other line as it was."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from dgpp.config.site import parse_env
from dgpp.errors import ConfigError

_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,~-]+")


def with_values(text: str, values: Mapping[str, str]) -> str:
    """The lines of `text` with `values` set: in place where a key has a line, else at the end.

    Reading it back gives what `text` said and `values` over it. Raises ConfigError for a value
    that no line can hold.
    """
    left = dict(values)
    lines = []
    for line in text.removesuffix("\n").split("\n") if text else ():
        match = _ASSIGNMENT.match(line)
        if match and match[1] in left:
            lines.append(_line(match[1], left.pop(match[1])))
        else:
            lines.append(line)
    lines += [_line(name, value) for name, value in left.items()]
    return "".join(f"{line}\n" for line in lines)


def _line(name: str, value: str) -> str:
    if not value or _PLAIN.fullmatch(value):
        return f"{name}={value}"
    for quote in ('"', "'"):
        if not {quote, "\n", "\r"}.intersection(value):
            return f"{name}={quote}{value}{quote}"
    raise ConfigError(
        f"{name}: a line of .env cannot hold this value, with a line break or both kinds of quotes"
    )


def write_values(file: Path, values: Mapping[str, str]) -> None:
    """Set `values` in `file`, which is made where it is absent, its owner's alone; whole or not at
    all. Raises ConfigError."""
    try:
        text = file.read_text("utf-8") if file.exists() else ""
        # A file that cannot be read back is mended by hand, not written over.
        parse_env(text, str(file))
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
        write_whole(file, with_values(text, values), mode)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"site settings {file}: cannot be written: {error}") from error


def write_whole(file: Path, text: str, mode: int) -> None:
    """`text` in `file`, at once: another reads what was there before or all of it. OSError."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as out:
        out.write(text)
    fresh.replace(file)
