"""Every key that `dgpp run` accepts is read somewhere: none is taken and then forgotten."""

import ast
from functools import cache
from pathlib import Path

import pytest

from dgpp.config.key import fields, leaves
from dgpp.config.settings import Settings
from dgpp.config.site import SERVED_NODE_KEYS, SiteSettings

ROOT = Path(__file__).parents[3]

ELSEWHERE = {
    "ports.http": "always equals http.port; a file or flag that says otherwise is refused",
    "ports.metrics": "dgpp/config/ports.py: metrics_port tells each rank its own",
    "engine.devices": "Settings.device tells each rank its own",
    "engine.prefix_cache_gib": "0 or the default; start-up says that there is no cache yet",
    "sampling.temperature": "launch lays all of `sampling` but the seed over the model's defaults",
    "sampling.top_p": "the same",
    "sampling.top_k": "the same",
    "sampling.min_p": "the same",
    "sampling.repetition_penalty": "the same",
    "sampling.presence_penalty": "the same",
    "sampling.frequency_penalty": "the same",
}
SITE_ELSEWHERE = {
    "DGPP_NODES": "becomes nodes",
    "DGPP_HTTP_PORT": "becomes http.port",
    "DGPP_HTTP_BIND": "becomes http.bind_host",
    "DGPP_JOURNAL_PORT": "becomes ports.journal",
    "DGPP_FABRIC_PORT": "becomes ports.fabric",
    "DGPP_LOG_DIR": "becomes paths.log_dir",
    "DGPP_SSH_USER": "becomes ssh_user",
    "DGPP_CLUSTER_CONFIG": "dgpp/cli/cluster.py reads it from the site as a whole",
    "DGPP_STAGE_DIR": "becomes paths.stage_dir",
    "DGPP_RELEASE_DIR": "becomes paths.release_dir",
    "DGPP_NODE_OVERRIDES": "becomes node_env, which run puts into the environment",
}


SHOWN_ONLY = {"log_lines.py", "snapshot.py"}
"""Modules that print settings; a key that is only printed is not honoured."""


@cache
def read_attributes():
    """(owner, name) of every `owner.name` in sources that use what they read, not dgpp/config."""
    found = set()
    for package in ("dgpp", "actors"):
        for path in (ROOT / package).rglob("*.py"):
            if "config" in path.relative_to(ROOT).parts or path.name in SHOWN_ONLY:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute):
                    owner = node.value
                    name = getattr(owner, "attr", getattr(owner, "id", ""))
                    found.add((name, node.attr))
    return found


def accepted():
    table = leaves(Settings)
    refused = {path for path, field in table.items() if field.key.now == ()}
    return [
        path for path in table if path not in refused and path.rpartition(".")[0] not in refused
    ]


@pytest.mark.parametrize("path", accepted())
def test_an_accepted_key_is_read(path):
    section, _, name = path.rpartition(".")
    owner = section.rpartition(".")[2] or "settings"
    assert path in ELSEWHERE or (owner, name) in read_attributes()


@pytest.mark.parametrize("field", fields(SiteSettings).values(), ids=lambda field: field.name)
def test_a_site_key_is_read_or_marked_later(field):
    sources = [
        path.read_text(encoding="utf-8")
        for package in ("dgpp", "actors")
        for path in (ROOT / package).rglob("*.py")
        if "config" not in path.relative_to(ROOT).parts
    ]
    read = any(f'"{field.name}"' in source for source in sources)
    assert field.name in SITE_ELSEWHERE or not field.supported or read
    assert field.supported or field.name not in SITE_ELSEWHERE


@pytest.mark.parametrize("name", SERVED_NODE_KEYS)
def test_a_served_node_key_is_a_served_site_key(name):
    assert fields(SiteSettings)[name].supported


def test_no_reason_outlives_its_key():
    assert ELSEWHERE.keys() <= set(accepted())
    assert SITE_ELSEWHERE.keys() <= fields(SiteSettings).keys()
