"""Rules between keys, and the refusal of keys whose feature this version does not serve."""

from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address

import msgspec

from dgpp.config.check import Reader
from dgpp.config.engine_settings import EngineSettings
from dgpp.config.key import Field, fields
from dgpp.config.settings import HIGHEST_PORT, HttpSettings, Settings
from dgpp.config.site import NODE_KEYS, SERVED_NODE_KEYS, check_node_env
from dgpp.errors import ConfigError


def check_constraints(settings: Settings, reader: Reader) -> None:
    """Raise ConfigError naming the first key that contradicts another one."""
    _check_world(settings, reader)
    _check_ports(settings, reader)
    _check_backend(settings.engine, reader)
    _check_devices(settings, reader)
    _check_drafts(settings.engine, reader)
    _check_prefill(settings.engine, reader)
    _check_template(settings.engine, reader)
    _check_http(settings.http, reader)


def _check_http(http: HttpSettings, reader: Reader) -> None:
    if bool(http.tls_cert) != bool(http.tls_key):
        missing = "http.tls_key" if http.tls_cert else "http.tls_cert"
        reader.fail(missing, "required, tls_cert and tls_key go together")
    if http.unix_socket and http.tls_cert:
        reader.fail("http.tls_cert", "excludes http.unix_socket, which never leaves this host")


def _check_world(settings: Settings, reader: Reader) -> None:
    nodes = settings.nodes
    if not nodes:
        reader.fail("nodes", "expected at least one node")
    if set(nodes) != {"localhost"}:
        for node, times in Counter(nodes).items():
            if times > 1:
                reader.fail("nodes", f"{node} is listed twice")
    if settings.node_env and len(settings.node_env) != len(nodes):
        reader.fail(
            "node_env", f"expected one entry per node, {len(settings.node_env)} for {len(nodes)}"
        )
    for index, entries in enumerate(settings.node_env):
        check_node_env(reader, f"node_env[{index}]", entries, NODE_KEYS)
    if settings.engine.dflash_model and settings.world_size > 1:
        _needs(settings.engine.decode_graph, reader, "dflash_model", "decode_graph in a world")


def _check_ports(settings: Settings, reader: Reader) -> None:
    ports = settings.ports
    taken = {"ports.fabric": ports.fabric, "ports.journal": ports.journal}
    if settings.world_size > 1:
        taken["http.port"] = settings.http.port
    if ports.metrics:
        others = max(1, settings.world_size - 1)
        if ports.metrics + others - 1 > HIGHEST_PORT:
            reader.fail(
                "ports.metrics",
                f"{others} ranks of one host need {others} ports from it on, got {ports.metrics}",
            )
        taken |= {_metrics_path(index): ports.metrics + index for index in range(others)}
    seen: dict[int, str] = {}
    for path, port in taken.items():
        if port in seen:
            reader.fail(path, f"must differ from {seen[port]}, both are {port}")
        seen[port] = path


def _metrics_path(index: int) -> str:
    return f"ports.metrics + {index}" if index else "ports.metrics"


def _needs(met: bool, reader: Reader, key: str, other: str) -> None:
    if not met:
        reader.fail(f"engine.{key}", f"needs engine.{other}")


def _check_template(engine: EngineSettings, reader: Reader) -> None:
    given = engine.default_chat_template_kwargs
    if len({given[name] for name in ("enable_thinking", "thinking") if name in given}) > 1:
        reader.fail("engine.default_chat_template_kwargs.thinking", "contradicts enable_thinking")


def _check_backend(engine: EngineSettings, reader: Reader) -> None:
    scripted = engine.backend == "scripted"
    _needs(not scripted or not engine.threads, reader, "threads", "backend cpu")
    _needs(not scripted or engine.load == "checkpoint", reader, "load", "backend cpu or cuda")
    _needs(scripted or not engine.script, reader, "script", "backend scripted")
    _needs(scripted or not engine.step_ms, reader, "step_ms", "backend scripted")
    if engine.graph_batch_min_live > engine.max_concurrency:
        reader.fail(
            "engine.graph_batch_min_live",
            f"at most engine.max_concurrency ({engine.max_concurrency}), "
            f"got {engine.graph_batch_min_live}",
        )
    fp8 = engine.dense_weights == "fp8"
    _needs(fp8 or engine.fp8_head != "mma", reader, "fp8_head", "dense_weights fp8")
    _needs(fp8 or not engine.prefill_fp8_gemm, reader, "prefill_fp8_gemm", "dense_weights fp8")


def _check_devices(settings: Settings, reader: Reader) -> None:
    devices, key = settings.engine.devices, "engine.devices"
    if not devices:
        return
    if len(devices) != settings.world_size:
        reader.fail(key, f"expected one for each rank, {len(devices)} for {settings.world_size}")
    taken: dict[tuple[str, int], int] = {}
    for rank, place in enumerate(zip(settings.nodes, devices, strict=True)):
        if place in taken:
            reader.fail(key, f"ranks {taken[place]} and {rank} share device {place[1]}")
        taken[place] = rank


def _check_drafts(engine: EngineSettings, reader: Reader) -> None:
    drafter = bool(engine.dflash_model)
    _needs(engine.mtp or engine.mtp_depth == 1, reader, "mtp_depth", "mtp")
    _needs(engine.mtp or not engine.draft_vocab, reader, "draft_vocab", "mtp")
    if drafter and engine.mtp:
        reader.fail("engine.dflash_model", "needs engine.mtp off")
    if engine.mtp_schedule:
        _needs(engine.decode_graph, reader, "mtp_schedule", "decode_graph")
        _needs(engine.mtp or drafter, reader, "mtp_schedule", "mtp or engine.dflash_model")
        if engine.dflash_batch_rows:
            reader.fail("engine.dflash_batch_rows", "excludes engine.mtp_schedule")
    if engine.mtp_schedule_min_depth > engine.mtp_depth and not drafter:
        reader.fail(
            "engine.mtp_schedule_min_depth",
            f"at most engine.mtp_depth ({engine.mtp_depth}), got {engine.mtp_schedule_min_depth}",
        )


def _check_prefill(engine: EngineSettings, reader: Reader) -> None:
    busy, idle = engine.prefill_budget_tokens, engine.prefill_idle_budget_tokens
    if idle and busy == 0:
        reader.fail("engine.prefill_idle_budget_tokens", "needs engine.prefill_budget_tokens")
    if 0 < idle < busy:
        reader.fail(
            "engine.prefill_idle_budget_tokens",
            f"at least engine.prefill_budget_tokens ({busy}), got {idle}",
        )


def _unsupported(
    section: msgspec.Struct, site: msgspec.Struct, table: dict[str, Field]
) -> Iterator[str]:
    for name, field in table.items():
        value, told = getattr(section, name), getattr(site, name)
        if isinstance(value, msgspec.Struct) and not field.optional:
            yield from _unsupported(value, told, fields(type(value), field.path))
        elif field.key.now is not None and value not in (field.default, *field.key.now, told):
            yield field.path


def _unsupported_world(settings: Settings, site: Settings, *, several_nodes: bool) -> Iterator[str]:
    """What is asked of other nodes. Without `several_nodes` the site may name none either: one
    process serves this host, which is not what a list of nodes says.
    """
    if set(settings.nodes) != {"localhost"} and not several_nodes:
        yield "nodes"
    told = site.node_env[0] if site.node_env else {}
    for index, entries in enumerate(settings.node_env):
        for name, value in entries.items():
            if name not in SERVED_NODE_KEYS and value != told.get(name):
                yield f"node_env[{index}].{name}"


_NO_SITE = Settings(model="none")


def unsupported_keys(
    settings: Settings, site: Settings = _NO_SITE, *, several_nodes: bool = False
) -> list[str]:
    """Paths of the keys that ask for something this version does not serve. `several_nodes`: each
    rank is started by itself.

    `site` is what the site alone says (`site_alone`): its values were written for all commands
    and nodes, so repeating them asks for nothing.
    """
    return [
        *_unsupported_world(settings, site, several_nodes=several_nodes),
        *_unsupported(settings, site, fields(Settings)),
    ]


def refuse_open_door(settings: Settings) -> None:
    """Raise ConfigError where other machines could use the server without a key and nobody said
    that they may. A rank's metrics are answered on the same address.
    """
    http = settings.http
    reached = bool(settings.ports.metrics) or not http.unix_socket
    reached = reached and not IPv4Address(http.bind_host).is_loopback
    if reached and not http.api_key_file and not http.insecure_no_auth:
        raise ConfigError(
            f"http.bind_host: {http.bind_host} is reached from other machines; set "
            "http.api_key_file, or say --insecure-no-auth"
        )


def refuse_unsupported(
    settings: Settings, site: Settings = _NO_SITE, *, several_nodes: bool = False
) -> None:
    """Raise ConfigError "not supported yet: KEY, ..." where a key asks for a later feature."""
    keys = unsupported_keys(settings, site, several_nodes=several_nodes)
    if keys:
        hint = (
            " (dgpp run serves this host alone: dgpp up starts all nodes, DGPP_NODES= leaves out "
            "the site's)"
        )
        raise ConfigError(
            "not supported yet: " + ", ".join(keys) + (hint if "nodes" in keys else "")
        )
