"""Log lines of every process: one record, one write; text for people or JSON lines.

2026-11-29T17:20:01.123Z INFO  engine[0] loaded 30 layers bytes=269000000
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
LEVEL_VARIABLE = "DGPP_LOG_LEVEL"

_STDERR = 2

_SHORT = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO ",
    logging.WARNING: "WARN ",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
}
_PRIORITY = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}
_STANDARD = ("ts", "level", "role", "rank", "msg", "traceback")


def tell_where_on_request() -> None:
    """From now on SIGUSR1 makes this process say on standard error where each of its threads is,
    and a fault in compiled code where that was."""
    faulthandler.enable(_STDERR)
    faulthandler.register(signal.SIGUSR1, _STDERR)


def timestamp(seconds: float) -> str:
    """A UNIX time as `2026-11-29T17:20:01.123Z`, milliseconds cut, not rounded."""
    milliseconds = int(seconds * 1000 + 1e-4)
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def one_line(text: str) -> str:
    """`text` with its control characters escaped, so that no value can forge a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = one_line(str(value))
    return text if text and not any(c in text for c in ' "=') else json.dumps(text)


def log_event(
    logger: logging.Logger, message: str, /, *, level: int = logging.INFO, **fields: object
) -> None:
    """Log `message` with fields: `message key=value ...` as text, members of the object as JSON.

    A field may not be called ts, level, role, rank, msg or traceback.
    """
    assert not any(name in _STANDARD for name in fields), fields
    logger.log(level, "%s", message, extra={"fields": fields, "spelled": False})


def log_line(
    logger: logging.Logger, text: str, fields: Mapping[str, object], *, level: int = logging.INFO
) -> None:
    """Log a sentence that spells its `fields` itself; only JSON lines repeat them."""
    logger.log(level, "%s", text, extra={"fields": fields, "spelled": True})


class _Formatter(logging.Formatter):
    """Shared by both forms: who speaks."""

    def __init__(self, role: str, rank: int) -> None:
        super().__init__()
        self._role = role
        self._rank = rank

    @staticmethod
    def _fields(record: logging.LogRecord) -> Mapping[str, object]:
        fields: Mapping[str, object] = getattr(record, "fields", {})
        return fields

    @staticmethod
    def _traceback(record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[0] is None:
            return ""
        return "".join(traceback.format_exception(*record.exc_info)).rstrip()


class TextFormatter(_Formatter):
    """Lines for people; `journal` puts the priority that journald reads in front."""

    def __init__(self, role: str, rank: int, *, journal: bool = False) -> None:
        super().__init__(role, rank)
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        parts = [one_line(record.getMessage())]
        if not getattr(record, "spelled", True):
            parts += [f"{name}={_value(value)}" for name, value in self._fields(record).items()]
        level = _SHORT.get(record.levelno, record.levelname)
        prefix = f"<{_PRIORITY.get(record.levelno, 6)}>" if self._journal else ""
        line = f"{timestamp(record.created)} {level} {self._role}[{self._rank}] {' '.join(parts)}"
        trace = self._traceback(record)
        return f"{prefix}{line}" + (f"\n{trace}" if trace else "")


class JsonFormatter(_Formatter):
    """The same as one JSON object a line: ts, level, role, rank, msg and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": timestamp(record.created),
            "level": record.levelname.lower(),
            "role": self._role,
            "rank": self._rank,
            "msg": record.getMessage(),
            **self._fields(record),
        }
        trace = self._traceback(record)
        if trace:
            entry["traceback"] = trace
        return json.dumps(entry, default=str, ensure_ascii=False)


class LineHandler(logging.Handler):
    """Writes each record with one `write` to a file descriptor, so that processes never mix lines.

    A descriptor that cannot be written (closed, full) loses the line and nothing else.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        try:
            data = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return
        except (TypeError, ValueError):
            self.handleError(record)


def _in_journal(descriptor: int) -> bool:
    """Whether the descriptor is the one that systemd connected to its journal."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


def setup(
    level: str | None = None,
    *,
    json: bool = False,
    role: str,
    rank: int,
    descriptor: int | None = None,
) -> None:
    """Send this process's log to `descriptor` (default: standard error). Call again to change it.

    `level` is one of LEVELS; None takes DGPP_LOG_LEVEL, else info. `role` and `rank` stand in
    every line, as `engine[0]`.
    """
    target = _STDERR if descriptor is None else descriptor
    journal = _in_journal(target)
    formatter = JsonFormatter(role, rank) if json else TextFormatter(role, rank, journal=journal)
    handler = LineHandler(target)
    handler.setFormatter(formatter)
    chosen = (level or os.environ.get(LEVEL_VARIABLE, "")).lower()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel((chosen if chosen in LEVELS else "info").upper())
    logging.captureWarnings(capture=True)
