"""One frame of `dgpp top`: two looks at a server's metrics, and what went on between them."""

from __future__ import annotations

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dgpp.serve.metrics import (
    NvmeCacheMetrics,
    PrefillMetrics,
    PrefixCacheMetrics,
    SchedulerMetrics,
    ServiceMetrics,
)

_BAR = 24
_MIB = 1 << 20


class Standing(msgspec.Struct, frozen=True):
    """What /health says."""

    status: str
    model: str
    reason: str = ""


class Written(msgspec.Struct, frozen=True):
    """What /metrics says."""

    scheduler: SchedulerMetrics
    service: ServiceMetrics
    prefix_cache: PrefixCacheMetrics
    prefill: PrefillMetrics
    nvme_cache: NvmeCacheMetrics


class Sample(msgspec.Struct, frozen=True):
    """One look, at `at` seconds of a clock that only goes forward."""

    at: float
    health: Standing
    metrics: Written


def frame(url: str, before: Sample, now: Sample) -> RenderableType:
    """The state of `now` and the rates since `before`. Counters that fell mean a server started
    anew: its rates are those since then."""
    seconds = max(now.at - before.at, 1e-9)
    then = before.metrics
    if then.scheduler.records > now.metrics.scheduler.records:
        then = Written(
            SchedulerMetrics(),
            ServiceMetrics(),
            PrefixCacheMetrics(),
            PrefillMetrics(),
            NvmeCacheMetrics(),
        )
    state = now.health.status + (f" — {now.health.reason}" if now.health.reason else "")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=9)
    table.add_column()
    _requests(table, then, now.metrics, seconds)
    _rates(table, then, now.metrics, seconds)
    _memory(table, then, now.metrics)
    parts: list[RenderableType] = [table]
    if now.metrics.prefill.requests:
        parts.append(_prompts(now.metrics.prefill))
    style = "green" if now.health.status == "ok" else "yellow"
    title = Text(f"{now.health.model} at {url}: {state}")
    return Panel(Group(*parts), title=title, title_align="left", border_style=style)


def lost(why: str) -> RenderableType:
    """The frame when there is nothing to show."""
    return Panel(Text(why), border_style="red")


def _requests(table: Table, then: Written, now: Written, seconds: float) -> None:
    levels, service = now.scheduler, now.service
    table.add_row(
        "requests",
        f"{levels.active} decoding, {levels.prefilling} reading, {levels.queued} queued, "
        f"{service.pending_admissions} at the door; "
        f"{(service.requests_total - then.service.requests_total) / seconds:.1f}/s",
    )
    table.add_row(
        "in all",
        f"{service.requests_total} came, {levels.terminal} choices ended; "
        f"{service.requests_shed} shed, {service.requests_cancelled} cancelled, "
        f"{service.requests_failed} failed, {service.rejects_bad} refused",
    )


def _rates(table: Table, then: Written, now: Written, seconds: float) -> None:
    old, new = then.scheduler, now.scheduler
    steps = new.decode_steps - old.decode_steps
    rows = new.decode_rows - old.decode_rows
    spent = new.step_ms - old.step_ms
    tokens = new.tokens_generated - old.tokens_generated
    read = new.prompt_tokens_computed - old.prompt_tokens_computed
    per_step = f"{spent / steps:.1f} ms a step, {rows / steps:.1f} rows" if steps else "no step"
    table.add_row("decode", f"{tokens / seconds:.1f} tok/s, {per_step}")
    cached = new.prompt_tokens - old.prompt_tokens - read
    table.add_row(
        "prefill", f"{read / seconds:.0f} tok/s read, {cached / seconds:.0f} tok/s cached"
    )
    if new.step_age_ms > 1000:
        table.add_row("", f"the running step has taken {new.step_age_ms / 1000:.1f} s")


def _memory(table: Table, then: Written, now: Written) -> None:
    used, total = now.scheduler.pool_blocks_in_use, now.scheduler.pool_blocks_total
    pinned = now.prefix_cache.blocks_pinned
    table.add_row("kv", _bar(used, total, f"{used} of {total} blocks in use, {pinned} cached"))
    old, cache = then.prefix_cache, now.prefix_cache
    if not cache.enabled:
        table.add_row("cache", "off")
        return
    hits, misses = cache.hits - old.hits, cache.misses - old.misses
    table.add_row(
        "cache",
        f"{_share(hits, hits + misses)} of {hits + misses} looked up now, "
        f"{_share(cache.hits, cache.hits + cache.misses)} in all; "
        f"{cache.entries} entries, {cache.tokens_saved} tokens saved, {cache.evictions} evicted",
    )
    table.add_row(
        "first tok",
        f"{cache.ttft_hit_ms_avg:.0f} ms after a hit, {cache.ttft_miss_ms_avg:.0f} ms else",
    )
    disk = now.nvme_cache
    if disk.enabled:
        label = f"{disk.bytes_used // _MIB} of {disk.bytes_total // _MIB} MiB, "
        label += f"{disk.restores} read back"
        table.add_row("disk", _bar(disk.bytes_used, disk.bytes_total, label))


def _prompts(prefill: PrefillMetrics) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for one in prefill.requests:
        done, total = one.processed_tokens, one.prompt_tokens
        label = f"{done} of {total} tokens, {one.elapsed_ms / 1000:.1f} s"
        table.add_row(Text(one.id, style="dim"), _bar(done, total, label))
    return table


def _bar(done: float, total: float, label: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=max(total, 1), completed=done, width=_BAR), Text(label))
    return grid


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "none"
