"""What the page on networking says that dgpp says, some line of its sources says."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from serving import ROOT

PAGE = ROOT / "docs" / "networking.md"
HEAD = "| it says | what to do |"
VALUE = re.compile(r"…|\b[A-Z]+\b|\b\d+(?:\.\d+)?\b")
"""What differs from case to case: an ellipsis, NAME, a number."""


@cache
def sources() -> str:
    """Every text of the sources, a line each, its values left out."""
    found = []
    for package in ("dgpp", "actors"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [p.value if isinstance(p, ast.Constant) else "\0" for p in node.values]
                    found.append("".join(str(part) for part in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(" ".join(text.replace("`", "").split()) for text in found)


def messages() -> list[str]:
    lines = PAGE.read_text().splitlines()
    found = []
    for start in (at for at, line in enumerate(lines) if line == HEAD):
        for row in lines[start + 2 :]:
            if not row.startswith("|"):
                break
            found += re.findall(r"`([^`]+)`", row.split("|")[1])
    return found


def test_the_tables_are_found():
    assert len(messages()) > 12


def said(words: list[str]) -> bool:
    """Whether half of `words` or more, and at least two, stand beside one another in a source;
    the others may be values."""
    least = max(2, -(-len(words) // 2))
    return any(
        " ".join(words[first : first + least]) in sources()
        for first in range(len(words) - least + 1)
    )


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_page_is_one_of_the_sources(message):
    pieces = [piece.split() for piece in VALUE.split(message)]
    assert all(said(words) for words in pieces if len(words) > 1)
