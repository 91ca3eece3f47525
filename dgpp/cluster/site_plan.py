"""What the nodes of a site say of how to set it up: their lanes, and the deployment that suits."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from dgpp.cluster.messages import NodeFacts
from dgpp.config.constraints import unsupported_keys
from dgpp.config.document import parse_document
from dgpp.config.env_file import write_whole
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings, parse_site
from dgpp.errors import ConfigError
from dgpp.net.roce import RoceDevice, site_values, usable

DEMO = "demo.json"


def lane_values(
    found: Mapping[str, Sequence[RoceDevice]], overrides: Mapping[str, Any]
) -> dict[str, str]:
    """The site keys that name the lanes of every node, by host; empty where a node has none.

    All nodes get as many as the one with the fewest. What the first node has stands for the site,
    and nodes that differ are added to `overrides` (DGPP_NODE_OVERRIDES).
    """
    lanes = {host: usable(devices) for host, devices in found.items()}
    count = min(map(len, lanes.values()), default=0)
    if not count:
        return {}
    values = {host: site_values(devices[:count]) for host, devices in lanes.items()}
    common = next(iter(values.values()))
    apart = {host: told for host, told in values.items() if told != common}
    if not apart:
        return common
    merged = {host: {**overrides.get(host, {}), **told} for host, told in apart.items()}
    return common | {"DGPP_NODE_OVERRIDES": json.dumps({**overrides, **merged})}


def suggested(names: Sequence[str], facts: Sequence[NodeFacts]) -> str:
    """The template to begin with: the demo model on a machine without a GPU, else the first that
    is not the demo."""
    with_gpu = all(node.has_gpu for node in facts)
    real = [name for name in names if name != DEMO]
    if DEMO in names and not (with_gpu and real):
        return DEMO
    return real[0] if real else ""


def world_size(template: Path) -> int:
    """How many nodes it is for. Raises ConfigError."""
    document = parse_document(template.read_bytes(), str(template))
    return len(document["nodes"]) if "nodes" in document else int(document.get("world_size", 1))


def served_part(template: Path) -> tuple[dict[str, Any], list[str]]:
    """The deployment in `template` less what this version does not serve yet, and those keys.

    Raises ConfigError.
    """
    document = parse_document(template.read_bytes(), str(template))
    nodes = " ".join(f"n{rank}" for rank in range(int(document.get("world_size", 1))))
    site: SiteSettings = parse_site({"DGPP_NODES": nodes}, "none")
    settings = resolve(document, str(template), site=site)
    left_out = unsupported_keys(settings, several_nodes=True)
    for path in left_out:
        *sections, key = path.split(".")
        place: Any = document
        for section in sections:
            place = place.get(section, {})
        place.pop(key, None)
    return document, left_out


def own_deployment(template: Path, folder: Path, port: int = 0) -> tuple[Path, list[str]]:
    """A deployment of this site's own in `folder`, made of `template`; the keys that were left out.
    Where it says a port of its own, that is `port` if one is given.

    One that is there already is left as it is. Where others than this machine reach the server, a
    file of one new key is made beside it, so that they need one. Raises ConfigError.
    """
    target = folder / template.name
    if target.exists():
        return target, []
    document, left_out = served_part(template)
    http = document.get("http", {})
    if port and "port" in http:
        document["http"] = http = http | {"port": port}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _is_reached(http):
            document["http"] = http | {"api_key_file": str(_key_file(folder))}
        write_whole(target, f"{json.dumps(document, indent=2)}\n", 0o644)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from error
    return target, left_out


def _is_reached(http: Mapping[str, Any]) -> bool:
    host = IPv4Address(http.get("bind_host", "127.0.0.1"))
    return not (host.is_loopback or http.get("api_key_file") or http.get("insecure_no_auth"))


def _key_file(folder: Path) -> Path:
    file = folder / "api-keys"
    if not file.exists():
        write_whole(file, f"{secrets.token_urlsafe(32)}\n", 0o600)
    return file
