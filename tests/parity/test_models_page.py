"""What docs/models.md says was verified is what these tests verify."""

from __future__ import annotations

import re
from pathlib import Path

import test_drafter
import test_every_array
import test_families
import test_world_forward

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROW = re.compile(r"^\| `([\w.-]+)` \| ([124, ]+) \| (.+) \|$", re.MULTILINE)


def parameters(test) -> list:
    """What a test is run with, of all its marks."""
    return [
        given for mark in test.pytestmark if mark.name == "parametrize" for given in mark.args[1]
    ]


def worlds_compared() -> dict[str, set[int]]:
    """The worlds in which each fixture is compared."""
    found = {name: set(worlds) for name, worlds in test_families.FIXTURES.items()}
    layer_by_layer = parameters(test_families.test_layer_by_layer)
    for name in (*test_every_array.FAMILIES, *layer_by_layer):
        found.setdefault(name, set()).add(1)
    for variant, world, _ in parameters(
        test_world_forward.test_fixtures_are_within_their_tolerance_in_a_world
    ):
        found.setdefault(f"glm-4.7-{variant}", {1}).add(world)
    # test_families.test_a_table_that_stays_in_its_file
    found["qwen3.8-flash-next-fp8"].add(4)
    blocks = parameters(test_drafter.test_blocks_are_those_of_the_reference)
    found[test_drafter.DRAFTER] = {int(world) for world in blocks}
    return found


def test_the_page_names_every_fixture_and_its_worlds() -> None:
    rows = ROW.findall(PAGE.read_text())
    said = {name: {int(world) for world in worlds.split(", ")} for name, worlds, _ in rows}
    assert len(said) == len(rows)
    assert said == worlds_compared()
