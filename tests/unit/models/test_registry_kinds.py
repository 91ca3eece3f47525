"""A config.json whose values are of another kind is refused by name, whatever lies in it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from dgpp.errors import DgppError
from dgpp.models.registry import family_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
CONFIGS = sorted(
    file.parent.name
    for file in FIXTURES.glob("*/config.json")
    if "dflash2" not in file.parent.name and "chat" not in file.parent.name
)
ODD = (None, [], {}, "x", -1, 0, 1 << 62, 10**30, 1.5, True, [{}], {"a": None})


def sites(config, path=()):
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from sites(value, (*path, key))


@pytest.mark.parametrize("name", CONFIGS)
def test_values_of_any_kind_are_taken_or_refused_by_name(name):
    whole = json.loads((FIXTURES / name / "config.json").read_text())
    family = family_of(whole)
    for path in sites(whole):
        if path == ("model_type",):
            continue
        for odd in ODD:
            config = deepcopy(whole)
            inner = config
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            try:
                family.settle(config)
            except DgppError:
                continue
