"""The standard lines of a serving process, as text and as fields. No prompt text in any of them."""

from __future__ import annotations

import logging
from ipaddress import IPv4Address

import msgspec

from dgpp.config.key import Field, fields
from dgpp.config.ports import url_of
from dgpp.config.resolve import digest
from dgpp.config.settings import HttpSettings, Settings


class Line(msgspec.Struct, frozen=True):
    """One log line: a sentence, and the same as fields for JSON lines (`log.log_line`)."""

    text: str
    fields: dict[str, object]
    level: int = logging.INFO


def rate(count: float, seconds: float) -> float:
    """`count` per second, 0 where no time passed."""
    return count / seconds if seconds > 0 else 0.0


def per(amount: float, count: float) -> float:
    """`amount` per item, 0 where there are none."""
    return amount / count if count > 0 else 0.0


def _changed(section: msgspec.Struct, table: dict[str, Field]) -> list[str]:
    return [
        f"{name} {value}"
        for name, field in table.items()
        if (value := getattr(section, name)) != field.default
    ]


def startup_lines(settings: Settings, version: str) -> list[Line]:
    """What this server decided to be, one line per decision, before anything is loaded."""
    engine = settings.engine
    shared = digest(settings)
    changed = _changed(engine, fields(type(engine), "engine"))
    served = engine.model_alias or settings.model
    lines = [
        Line(
            f"dgpp {version}: model {settings.model}, settings {shared}",
            {"version": version, "model": settings.model, "served": served, "digest": shared},
        ),
        Line(
            f"world of {settings.world_size}: backend {engine.backend}, "
            f"placement {engine.placement}",
            {
                "world_size": settings.world_size,
                "backend": engine.backend,
                "placement": engine.placement,
            },
        ),
        Line(
            f"limits: {engine.max_concurrency} requests at once, {engine.queue_limit} queued, "
            f"{engine.kv_capacity} tokens of context, {engine.max_connections} connections",
            {
                "max_concurrency": engine.max_concurrency,
                "queue_limit": engine.queue_limit,
                "kv_capacity": engine.kv_capacity,
                "max_connections": engine.max_connections,
            },
        ),
    ]
    if engine.load == "dummy":
        text = "engine.load dummy: random weights in the checkpoint's form, answers mean nothing"
        lines.append(Line(text, {"load": "dummy"}, logging.WARNING))
    lines += _door_lines(settings.http)
    if changed:
        lines.append(Line("engine keys set: " + ", ".join(changed), {"engine_keys": changed}))
    return lines


def _door_lines(http: HttpSettings) -> list[Line]:
    """Warnings of what anybody on the network could do here, or read."""
    bound = http.bind_host
    if http.unix_socket or IPv4Address(bound).is_loopback:
        return []
    if not http.api_key_file:
        text = f"http.bind_host {bound}: beyond this host, anyone who reaches it needs no key"
        return [Line(text, {"bind_host": bound}, logging.WARNING)]
    if not http.tls_cert:
        text = f"http.bind_host {bound}: without http.tls_cert, keys and prompts travel in the open"
        return [Line(text, {"bind_host": bound}, logging.WARNING)]
    return []


def ready_line(http: HttpSettings, model: str) -> Line:
    """The line that says requests are welcome. An address 0.0.0.0 is shown as 127.0.0.1."""
    where = url_of(http)
    url = where if http.unix_socket else f"{where}/v1"
    return Line(f"READY — {url} (model {model}) — stop: Ctrl-C", {"url": url, "model": model})


def admitted_line(
    request: str,
    *,
    slot: int,
    prompt_tokens: int,
    max_tokens: int,
    cached_tokens: int,
    queue_ms: float,
    decoded_tokens: int = 0,
) -> Line:
    """A request got its slot."""
    cached = f"{cached_tokens} cached"
    if decoded_tokens:
        cached += f", {decoded_tokens} of them as decode wrote them"
    return Line(
        f"{request} admitted to slot {slot}: prompt {prompt_tokens} tok ({cached}), "
        f"at most {max_tokens} more, queued {queue_ms:.0f} ms",
        {
            "id": request,
            "slot": slot,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "decoded_tokens": decoded_tokens,
            "max_tokens": max_tokens,
            "queue_ms": round(queue_ms, 3),
        },
    )


def missed_line(request: str, cached_tokens: int, why: str) -> Line:
    """Why not more of a prompt came from the prefix cache."""
    found = f"prefix cache: {cached_tokens} tok, no more: " if cached_tokens else "prefix cache: "
    return Line(f"{request} {found}{why}", {"id": request, "cached_tokens": cached_tokens})


class Retirement(msgspec.Struct, frozen=True, kw_only=True):
    """What one request took. Times in ms; `tokens` are committed ones, the first of them drawn by
    prefill; `decode_ms` and `decode_steps` cover the others.
    """

    id: str
    reason: str
    tokens: int
    prompt_tokens: int
    cached_tokens: int = 0
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    decode_steps: int

    def line(self) -> Line:
        """`ID retired (eos): 64 tok in 0.52 s — queue 1 ms, prefill ...; decode ...`."""
        decoded = max(0, self.tokens - 1)
        total_s = (self.queue_ms + self.prefill_ms + self.decode_ms) / 1000
        speed = rate(decoded, self.decode_ms / 1000)
        text = (
            f"{self.id} retired ({self.reason}): {self.tokens} tok in {total_s:.2f} s — "
            f"queue {self.queue_ms:.0f} ms, prefill {self.prompt_tokens} tok "
            f"({self.cached_tokens} cached) in {self.prefill_ms:.0f} ms"
        )
        if decoded:
            text += (
                f"; decode {speed:.1f} tok/s, {per(self.decode_ms, decoded):.1f} ms/tok, "
                f"{per(self.decode_ms, self.decode_steps):.1f} ms/step, "
                f"{per(decoded, self.decode_steps):.2f} tok/step"
            )
        return Line(text, msgspec.structs.asdict(self) | {"decode_tok_s": round(speed, 1)})


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """What happened since the last statistics line, and how full the server is now. Times in s."""

    rank: int
    seconds: float
    decode_tokens: int = 0
    decode_steps: int = 0
    decode_s: float = 0.0
    prefill_prompts: int = 0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    cached_tokens: int = 0
    cache_hits: int = 0
    cache_lookups: int = 0
    cache_entries: int = 0
    cache_slots: int = 0
    live: int = 0
    queued: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    requests: int = 0
    shed: int = 0
    cancelled: int = 0

    @property
    def idle(self) -> bool:
        """Whether nothing ran and nothing waits; one idle line closes a busy stretch."""
        work = (self.decode_steps, self.prefill_tokens, self.live, self.queued, self.requests)
        return not any(work)

    def line(self) -> Line:
        """`stats: rank 0 | 10.0 s | decode ... | prefill ... | live ... | pool ... | requests`."""
        decode = (
            f"decode {rate(self.decode_tokens, self.decode_s):.1f} tok/s, "
            f"{per(self.decode_s * 1000, self.decode_tokens):.1f} ms/tok, "
            f"{per(self.decode_s * 1000, self.decode_steps):.1f} ms/step "
            f"({self.decode_steps} steps / {self.decode_tokens} tok, "
            f"{per(self.decode_s * 100, self.seconds):.0f} % of wall)"
        )
        prefill = (
            f"prefill {self.prefill_prompts} prompts / {self.prefill_tokens} tok, "
            f"{rate(self.prefill_tokens, self.prefill_s):.0f} tok/s "
            f"({per(self.prefill_s * 100, self.seconds):.0f} % of wall), "
            f"cached {self.cached_tokens} tok ({self.cache_hits}/{self.cache_lookups} hit)"
        )
        parts = [
            f"stats: rank {self.rank}",
            f"{self.seconds:.1f} s",
            decode,
            prefill,
            f"live {self.live}, queued {self.queued}",
            f"pool {self.blocks_used}/{self.blocks_total} blocks",
            f"prefix cache {self.cache_entries}/{self.cache_slots} entries",
            f"requests +{self.requests} ({self.shed} shed, {self.cancelled} cancelled)",
        ]
        values = msgspec.structs.asdict(self)
        del values["rank"]
        return Line(" | ".join(parts), values)
