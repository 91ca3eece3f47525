"""docs/operations.md quotes what servers say: every quoted line is still said somewhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SECTIONS = (
    *("Several machines", "Releases", "Start", "Weight images"),
    *("Failures while serving", "The disk tier"),
)
HOLES = re.compile(
    r"…|\{.*\}|\[Errno \d+\][\w /]*|Permission denied|No space left on device|No route to host"
    r"|Connection refused|timed out|Host key verification failed|[\d.]+ GiB \w+|\bat\b"
    r"|\b[A-Z]+(:[A-Z]+)?\b(?! token)|[\d.]+|\b\w+ of rank|operations\b|\w+Error\b"
)
"""What stands for something else in a quoted line, or is the operating system's own."""


@cache
def said() -> str:
    """All text of the program, strings that follow one another joined, holes of templates cut."""
    found: list[str] = []
    for folder in ("dgpp", "actors", "kernels_numba"):
        for file in (ROOT / folder).rglob("*.py"):
            text = re.sub(r'"\s*\n\s*f?"', "", file.read_text())
            found.append(re.sub(r"\{[^{}]*\}|%[\d.]*[sdfx]", "\0", text))
    return "\n".join(found)


def quoted() -> list[str]:
    """The lines in the first columns of the sections' tables, and those of its failures."""
    lines: list[str] = []
    for section in SECTIONS:
        text = re.split(rf"^##+ {section}$", PAGE, flags=re.M)[1]
        text = re.split(r"^##+ ", text, flags=re.M)[0]
        rows = [row for row in text.splitlines() if row.startswith("| ")]
        for row in rows:
            cells = row.strip("|").split(" | ")
            told = cells[1:4] if section == "Failures while serving" else cells[:1]
            lines += [line for cell in told for line in re.findall(r"`([^`]+)`", cell)]
    return list(dict.fromkeys(lines))


def test_the_page_quotes_what_there_is_to_quote():
    assert len(quoted()) > 60


@pytest.mark.parametrize("line", quoted())
def test_a_quoted_line_is_said(line):
    for part in re.split(r"[:;]", HOLES.sub(";", line)):
        words = part.strip(" ,()[]—")
        if len(words) > 3:
            assert words in said(), f"nobody says {words!r}"
