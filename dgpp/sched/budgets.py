"""How many prompt tokens one step may read, while others decode and while none does."""

from __future__ import annotations

import msgspec

from dgpp.errors import ConfigError
from dgpp.sched.limits import EngineLimits

AUTO = -1
AUTO_TOKENS = 256


class PrefillBudgets(msgspec.Struct, frozen=True):
    """Prompt tokens a step: `busy` when some slot decodes, `idle` otherwise.

    Both are positive multiples of the engine's chunk alignment and at most its chunk limit.
    """

    busy: int
    idle: int


def resolve_budgets(
    limits: EngineLimits, budget_tokens: int = AUTO, idle_budget_tokens: int = 0
) -> PrefillBudgets:
    """Budgets from `engine.prefill_budget_tokens` and `engine.prefill_idle_budget_tokens`.

    −1 is automatic: 256 tokens, at least one aligned unit, at most the chunk limit and a positive
    idle budget, rounded down to the alignment. 0 is monolithic: as much as one step holds. The
    idle budget 0 follows the busy one, except that under the automatic one it is a whole step:
    nobody decodes whom a longer step would delay. ConfigError names the key and its limit.
    """
    align = limits.chunk_align
    ceiling = limits.chunk_limit // align * align
    if ceiling <= 0:
        raise ConfigError(
            f"engine limits: chunk_limit {limits.chunk_limit} is below chunk_align {align}"
        )
    if idle_budget_tokens:
        _check("engine.prefill_idle_budget_tokens", idle_budget_tokens, align, ceiling)
    if budget_tokens == AUTO:
        busy = min(ceiling, max(AUTO_TOKENS, align))
        if idle_budget_tokens:
            busy = min(busy, idle_budget_tokens)
        return PrefillBudgets(busy // align * align, idle_budget_tokens or ceiling)
    if budget_tokens == 0:
        if idle_budget_tokens:
            raise ConfigError(
                f"engine.prefill_idle_budget_tokens = {idle_budget_tokens} needs "
                "engine.prefill_budget_tokens other than 0 (monolithic)"
            )
        return PrefillBudgets(ceiling, ceiling)
    _check("engine.prefill_budget_tokens", budget_tokens, align, ceiling)
    if idle_budget_tokens and idle_budget_tokens < budget_tokens:
        raise ConfigError(
            f"engine.prefill_idle_budget_tokens = {idle_budget_tokens} is below "
            f"engine.prefill_budget_tokens = {budget_tokens}"
        )
    return PrefillBudgets(budget_tokens, idle_budget_tokens or budget_tokens)


def _check(key: str, value: int, align: int, ceiling: int) -> None:
    if value < align or value > ceiling or value % align:
        raise ConfigError(
            f"{key} = {value} must be a multiple of {align} (chunk alignment) "
            f"from {align} to {ceiling} (chunk limit)"
        )
