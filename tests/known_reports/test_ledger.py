"""The ledger is whole and says the truth."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.known_reports.ledger import REPORTS

HERE = Path(__file__).parent
MISSING = {4, 8, 12, 15, 31, 34, 39, 42, 44, 50, 54, 62, 66, 70, 82, 87, 93}
"""Told twice, or of something that no server does."""
NUMBERS = [number for number in range(1, 103) if number not in MISSING]


@cache
def functions(path: Path) -> dict[str, ast.FunctionDef]:
    found = ast.parse(path.read_text()).body
    return {node.name: node for node in found if isinstance(node, ast.FunctionDef)}


def marked() -> set[int]:
    """The numbers that tests of this folder have."""
    numbers: set[int] = set()
    for path in HERE.glob("test_*.py"):
        for name, node in functions(path).items():
            for mark in node.decorator_list:
                match mark:
                    case ast.Call(ast.Name("report"), arguments) if name.startswith("test_"):
                        numbers |= {ast.literal_eval(argument) for argument in arguments}
    return numbers


def test_every_report_is_there_once() -> None:
    assert len(NUMBERS) == 85
    assert list(REPORTS) == NUMBERS


@pytest.mark.parametrize("number", REPORTS)
def test_a_report_has_a_test_or_a_reason(number: int) -> None:
    found = REPORTS[number]
    assert number in marked() or found.covered or found.elsewhere
    for place in found.covered:
        path, _, name = place.partition("::")
        assert name in functions(HERE.parent / path), place
