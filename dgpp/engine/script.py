"""The scripts that a scripted engine plays: JSON lines of token ids and step sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dgpp.errors import ConfigError

KEY = "engine.script"
MAX_PER_STEP = 16
MOST_UNDECIDED = 1 << 30


class ScriptLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice's answer: `ids`, begun again at the end, `per_step[i % len]` of them a step.

    Every `undecided`-th token is one that the engine does not pick itself and that its candidates
    leave open; 0: none is.
    """

    ids: tuple[int, ...]
    per_step: tuple[int, ...] = (1,)
    undecided: int = 0


def load_script(path: Path, vocab_size: int) -> list[ScriptLine]:
    """The lines of the file at `path`; ConfigError names line and field of the first fault."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{KEY} = {path}: {error.strerror}") from error
    return parse_script(text, vocab_size, str(path))


def parse_script(text: bytes, vocab_size: int, name: str = "script") -> list[ScriptLine]:
    """Lines of `text`, empty ones skipped; `name` is what errors call it."""
    lines: list[ScriptLine] = []
    for number, raw in enumerate(text.split(b"\n"), 1):
        if raw.strip():
            where = f"{KEY} = {name}, line {number}"
            try:
                line = msgspec.json.decode(raw, type=ScriptLine)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{where}: {error}") from error
            _check(where, "ids", line.ids, 0, vocab_size - 1)
            _check(where, "per_step", line.per_step, 1, MAX_PER_STEP)
            _check(where, "undecided", (line.undecided,), 0, MOST_UNDECIDED)
            lines.append(line)
    if not lines:
        raise ConfigError(f"{KEY} = {name}: no line with ids")
    return lines


def max_drafts(lines: Sequence[ScriptLine]) -> int:
    """The most tokens that a step of any line has beyond its first."""
    return max((max(line.per_step) for line in lines), default=1) - 1


def _check(where: str, field: str, values: tuple[int, ...], least: int, most: int) -> None:
    if not values:
        raise ConfigError(f"{where}: {field} is empty")
    for index, value in enumerate(values):
        if not least <= value <= most:
            raise ConfigError(f"{where}: {field}[{index}] = {value} is outside {least}..{most}")
