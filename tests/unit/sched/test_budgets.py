import pytest

from dgpp.errors import ConfigError
from dgpp.sched.budgets import PrefillBudgets, resolve_budgets
from dgpp.sched.limits import EngineLimits


def limits(align: int, limit: int) -> EngineLimits:
    return EngineLimits(4, 100, 4096, 16, 64, align, limit, 16)


@pytest.mark.parametrize(
    ("align", "limit", "busy", "idle", "expected"),
    [
        (64, 2048, -1, 0, (256, 2048)),
        (96, 2048, -1, 0, (192, 2016)),  # 256 rounded down; 2048 = 21.3 units
        (512, 2048, -1, 0, (512, 2048)),  # at least one unit
        (64, 128, -1, 0, (128, 128)),  # at most the chunk limit
        (64, 2048, -1, 128, (128, 128)),  # at most a positive idle budget
        (64, 2048, -1, 1024, (256, 1024)),
        (64, 2048, 0, 0, (2048, 2048)),
        (64, 2048, 128, 0, (128, 128)),
        (64, 2048, 128, 512, (128, 512)),
    ],
)
def test_resolution(align, limit, busy, idle, expected):
    assert resolve_budgets(limits(align, limit), busy, idle) == PrefillBudgets(*expected)


@pytest.mark.parametrize(
    ("busy", "idle", "key"),
    [
        (100, 0, "engine.prefill_budget_tokens = 100 must be a multiple of 64"),
        (4096, 0, "engine.prefill_budget_tokens = 4096 .* to 2048"),
        (-2, 0, "engine.prefill_budget_tokens = -2"),
        (128, 100, "engine.prefill_idle_budget_tokens = 100"),
        (128, 64, "engine.prefill_idle_budget_tokens = 64 is below"),
        (0, 64, "engine.prefill_idle_budget_tokens = 64 needs"),
    ],
)
def test_refusals_name_the_key(busy, idle, key):
    with pytest.raises(ConfigError, match=key):
        resolve_budgets(limits(64, 2048), busy, idle)


def test_a_limit_below_the_alignment_is_refused():
    with pytest.raises(ConfigError, match="chunk_limit 32 is below chunk_align 64"):
        resolve_budgets(limits(64, 32))
