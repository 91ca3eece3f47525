"""Every family against its references: layers, experts, tokens, drafts, alone and in worlds."""

from __future__ import annotations

from pathlib import Path

import pytest
from reference_fixtures import fixture_directory

from dgpp.check.expected import ROUNDED, Expected, stated_tables, stated_tolerances
from dgpp.check.forward import CheckOptions, check_checkpoint
from dgpp.check.report import ForwardReport
from dgpp.checkpoint.checkpoint import Checkpoint

# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

# Of each fixture the worlds that its family is served in.
FIXTURES = {
    # Alone they are in test_every_array.py.
    "deepseek-v4-flash-mxfp4-fp8": (2, 4),
    "deepseek-v4.1-flash-mxfp4-fp8": (2, 4),
    "glm-5.3-bf16": (1, 2, 4),
    "glm-5.3-int4-int8": (1, 2, 4),
    "glm-5.3-flash-bf16": (1, 2, 4),
    "glm-5.3-flash-fp8": (1, 4),
    "glm-5.3-flash-nvfp4-fp8": (1, 2),
    "mimo-bf16": (1, 2, 4),
    "mimo-mxfp4-fp8": (1, 2, 4),
    "qwen3.8-27b-bf16": (1, 2, 4),
    "qwen3.8-27b-fp8": (1, 2, 4),
    "qwen3.8-flash-next-bf16": (1, 4),
    "qwen3.8-flash-next-fp8": (2,),
    "qwen3.8-flash-next-nvfp4": (4,),
    "qwen3.8-flash-next-autoround": (2,),
}


def check(folder: Path, **options) -> tuple[ForwardReport, Expected]:
    expected = Expected(folder / "expected.npz")
    if options.get("world") == 2:
        # Rows are rounded on every rank as on one; worlds of 1 and 4 compare what comes of it.
        plain = {name for name in expected.arrays if not name.startswith(ROUNDED)}
        expected.arrays = {name: expected.arrays[name] for name in plain}
    tolerances = stated_tolerances(folder / "expected.npz")
    assert tolerances is not None
    chosen = CheckOptions(threads=1, tables=stated_tables(folder / "expected.npz"), **options)
    return check_checkpoint(Checkpoint(folder), expected, tolerances, chosen), expected


@pytest.mark.parametrize(
    ("name", "world"), [(name, world) for name, worlds in FIXTURES.items() for world in worlds]
)
def test_served_as_it_would_be(name: str, world: int) -> None:
    report, expected = check(fixture_directory(name), world=world)
    assert report.failures == ()
    assert report.ok
    assert all("images" in why for why in report.not_compared.values())
    assert len(report.layers) == len(expected["hidden"])
    assert report.greedy_equal == report.greedy_total == len(expected["greedy"])
    assert report.argmax_agree == 1.0
    assert report.router_equal
    assert report.selected_equal
    assert (report.mtp_max_abs is not None) == ("mtp_logits" in expected)
    parts = [report]
    if "qdq_logits" in expected:
        parts.append(report.rounded)
    if "bounded_greedy" in expected:
        parts += [part.bounded for part in parts]
    for part in parts:
        assert part is not None
        assert (part.blocks is not None) == ("dspark_logits" in expected)
        assert part.blocks is None or part.blocks.equal == part.blocks.total > 0


def test_a_table_that_stays_in_its_file() -> None:
    report, _ = check(fixture_directory("qwen3.8-flash-next-fp8"), world=4, mapped=True)
    assert report.failures == ()


# References that tell the mean of a residual's streams do not tell what a layer takes.
MEANS = ("deepseek", "flash-next")


@pytest.mark.parametrize("name", [n for n in FIXTURES if not any(m in n for m in MEANS)])
def test_layer_by_layer(name: str) -> None:
    report, _ = check(fixture_directory(name), per_layer=True)
    assert report.failures == ()
    assert all(layer.ok for layer in report.layers)
