"""From a deployment file, the site and the command line to one `Settings`, and back to JSON."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dgpp.config.check import Reader
from dgpp.config.constraints import check_constraints
from dgpp.config.document import Override, overlay, parse_document
from dgpp.config.key import Field, fields
from dgpp.config.settings import Settings
from dgpp.config.site import NODE_KEYS, SiteSettings, load_told, settings_of
from dgpp.errors import ConfigError

SITE_ONLY = {
    "ssh_user": "DGPP_SSH_USER",
    "node_env": "DGPP_NODE_OVERRIDES",
    "ports.http": "DGPP_HTTP_PORT",
    "ports.fabric": "DGPP_FABRIC_PORT",
    "ports.journal": "DGPP_JOURNAL_PORT",
    "paths.log_dir": "DGPP_LOG_DIR",
    "paths.stage_dir": "DGPP_STAGE_DIR",
    "paths.release_dir": "DGPP_RELEASE_DIR",
}
"""What only a resolved file (one with `nodes`) may hold, and the site key to use instead."""

SITE_DEFAULTS = {
    "http.bind_host": "DGPP_HTTP_BIND",
    "http.port": "DGPP_HTTP_PORT",
    **{path: SITE_ONLY[path] for path in SITE_ONLY if path.startswith("paths.")},
    "ports.fabric": "DGPP_FABRIC_PORT",
    "ports.journal": "DGPP_JOURNAL_PORT",
}
"""What the site's keys say where a file is silent."""


def _at(document: Mapping[str, Any], path: str) -> Any:
    section, _, name = path.rpartition(".")
    inner = document.get(section) if section else document
    return inner.get(name) if isinstance(inner, dict) else None


def _check_form(document: Mapping[str, Any], reader: Reader) -> None:
    """A deployment file has world_size, a resolved one has nodes; site keys stay in the site."""
    if "nodes" in document:
        if "world_size" in document:
            reader.fail("nodes", "excludes world_size; move it to .env as DGPP_NODES")
        given, port = _at(document, "ports.http"), _at(document, "http.port")
        if None not in (given, port) and given != port:
            reader.fail("ports.http", f"must equal http.port ({port}), got {given}")
        return
    for path, variable in SITE_ONLY.items():
        if _at(document, path) is not None:
            wrong = f"a site setting; move it to .env as {variable} (a file of nodes may say it)"
            reader.fail(path, wrong)


def _fill(document: dict[str, Any], path: str, value: Any, *, force: bool = False) -> None:
    section, _, name = path.partition(".")
    inner = document.setdefault(section, {})
    if value and (force or name not in inner):
        inner[name] = value


def _with_site(document: dict[str, Any], site: SiteSettings) -> None:
    """Site values where the file is silent; a deployment file's resident cache gives way too."""
    _fill(document, "http.port", _at(document, "ports.http"))
    for path, key in SITE_DEFAULTS.items():
        _fill(document, path, getattr(site, key))
    _fill(
        document,
        "paths.resident_cache",
        site.DGPP_RESIDENT_CACHE_DIR,
        force="nodes" not in document,
    )
    if site.DGPP_SSH_USER:
        document.setdefault("ssh_user", site.DGPP_SSH_USER)


def _filled(
    document: Mapping[str, Any], told: Mapping[str, str], overrides: Sequence[Override]
) -> dict[str, str]:
    """What errors in the keys begin with that the site says, and neither file nor flags."""
    given = {override.path for override in overrides}
    if _at(document, "ports.http") is not None:
        given.add("http.port")
    return {
        path: f"{settings_of(told[key])}: {key}"
        for path, key in SITE_DEFAULTS.items()
        if key in told and path not in given and _at(document, path) is None
    }


def _nodes(settings: Settings, site: SiteSettings, reader: Reader, source: str) -> tuple[str, ...]:
    world, count = settings.world_size, len(site.DGPP_NODES)
    if not count:
        return ("localhost",) * world
    if count < world:
        nodes = "1 node" if count == 1 else f"{count} nodes"
        reader.fail("world_size", f"{world} ranks, but DGPP_NODES{source} has {nodes}")
    return site.DGPP_NODES[:world]


def _node_env(nodes: tuple[str, ...], site: SiteSettings) -> tuple[dict[str, str], ...]:
    hub = site.HF_HUB_CACHE or (f"{site.HF_HOME.rstrip('/')}/hub" if site.HF_HOME else "")
    common = {
        "DGPP_ROCE_DEVICES": " ".join(site.DGPP_ROCE_DEVICES),
        "DGPP_ROCE_GID_INDICES": " ".join(site.DGPP_ROCE_GID_INDICES),
        "HF_HUB_CACHE": hub,
        "DGPP_RESIDENT_CACHE_DIR": site.DGPP_RESIDENT_CACHE_DIR,
        "DGPP_LOG_LEVEL": site.DGPP_LOG_LEVEL if site.DGPP_LOG_LEVEL != "info" else "",
        "DGPP_MLOCK": site.DGPP_MLOCK if site.DGPP_MLOCK != "on" else "",
    }
    entries = []
    for node in nodes:
        merged = common | site.DGPP_NODE_OVERRIDES.get(node, {})
        entries.append({name: merged[name] for name in NODE_KEYS if merged.get(name)})
    return tuple(entries) if any(entries) else ()


def resolve(
    document: Mapping[str, Any],
    source: str,
    *,
    site: SiteSettings,
    overrides: Sequence[Override] = (),
    told: Mapping[str, str] | None = None,
) -> Settings:
    """One Settings: overrides over the file over the site over the defaults.

    `document` is a deployment file (world_size) or a resolved one (nodes); `told` names what says
    each key of the site. Raises ConfigError "cluster config `source`: KEY: ...", where the site
    says it "site settings ...".
    """
    told = told or {}
    reader = Reader(f"cluster config {source}", _filled(document, told, overrides))
    reader.section(Settings, document)
    _check_form(document, reader)
    for override in overrides:
        if override.path == "ports.http":
            Reader(override.origin).fail("ports.http", "follows http.port, set that one")
    nodes_from = f" ({told['DGPP_NODES']})" if "DGPP_NODES" in told else ""
    settings = _settle(document, reader, site, overrides, nodes_from)
    check_constraints(settings, reader)
    return settings


def site_alone(site: SiteSettings) -> Settings:
    """What a deployment of one rank gets that says nothing itself. The model is a placeholder."""
    return _settle({"model": "none"}, Reader("site settings"), site, ())


def site_whole(site: SiteSettings) -> Settings:
    """The same for every node that the site names, one rank each."""
    alone = site_alone(site)
    nodes = site.DGPP_NODES or alone.nodes
    return msgspec.structs.replace(
        alone, nodes=nodes, world_size=len(nodes), node_env=_node_env(nodes, site)
    )


def _settle(
    document: Mapping[str, Any],
    reader: Reader,
    site: SiteSettings,
    overrides: Sequence[Override],
    nodes_from: str = "",
) -> Settings:
    resolved_form = "nodes" in document
    merged = overlay(document, ())
    _with_site(merged, site)
    merged = overlay(merged, overrides)
    settings = reader.section(Settings, merged)
    if "nodes" in merged:
        if "world_size" in merged and settings.world_size != len(settings.nodes):
            reader.fail("world_size", f"is {settings.world_size} for {len(settings.nodes)} nodes")
        settings = msgspec.structs.replace(settings, world_size=len(settings.nodes))
    else:
        settings = msgspec.structs.replace(
            settings, nodes=_nodes(settings, site, reader, nodes_from)
        )
    if not resolved_form and not settings.node_env:
        settings = msgspec.structs.replace(settings, node_env=_node_env(settings.nodes, site))
    ports = msgspec.structs.replace(settings.ports, http=settings.http.port)
    return msgspec.structs.replace(settings, ports=ports)


def load(
    path: Path,
    *,
    overrides: Sequence[Override] = (),
    environ: Mapping[str, str],
    directories: tuple[Path, ...] = (),
) -> Settings:
    """Settings of the deployment file at `path`; `.env` is looked for in `directories`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cluster config {path}: cannot be read: {error.strerror}") from None
    site, told = load_told(environ, directories)
    document = parse_document(data, str(path))
    return resolve(document, str(path), site=site, overrides=overrides, told=told)


def to_document(settings: Settings) -> dict[str, Any]:
    """The resolved JSON of `settings`; reading it back gives equal settings on any machine."""
    return _values(settings, fields(Settings), lambda field: field.path != "world_size")


def shared_document(settings: Settings) -> dict[str, Any]:
    """Every key that all ranks must agree on.

    The HTTP port, the connection cap, sampling defaults, nodes and local paths stay out.
    """
    return _values(settings, fields(Settings), lambda field: field.key.shared)


def digest(settings: Settings) -> str:
    """16 hex digits over every key that all ranks must agree on."""
    encoded = msgspec.json.encode(shared_document(settings), order="sorted")
    return hashlib.sha256(encoded).hexdigest()[:16]


def _values(
    section: msgspec.Struct, table: dict[str, Field], wanted: Callable[[Field], bool]
) -> dict[str, Any]:
    """The wanted keys of a section as JSON values, without those that are null."""
    values: dict[str, Any] = {}
    for name, field in table.items():
        value = getattr(section, name)
        if isinstance(value, msgspec.Struct):
            values[name] = _values(value, fields(type(value), field.path), wanted)
        elif value is not None and wanted(field):
            values[name] = list(value) if isinstance(value, tuple) else value
    return values
