"""A rank adopts rank 0's shared keys and keeps what belongs to its node."""

from __future__ import annotations

import json

import pytest

from dgpp.config.adopt import adopt, encode_shared
from dgpp.config.key import leaves
from dgpp.config.resolve import digest, resolve
from dgpp.config.settings import Settings
from dgpp.config.site import SiteSettings
from dgpp.errors import ConfigError


def settings(engine=None, **more):
    document = {"model": "m", "world_size": 2, "engine": engine or {}} | more
    return resolve(document, "f", site=SiteSettings())


def test_shared_keys_come_from_rank_0_and_local_ones_stay():
    theirs = settings({"max_concurrency": 3, "kv_capacity": 64, "cluster_token_file": "/a"})
    own = settings(
        {"max_concurrency": 5, "max_connections": 7, "cluster_token_file": "/b"},
        http={"port": 99, "sse_ping_interval": 5},
    )
    adopted, changed = adopt(own, encode_shared(theirs))
    assert changed == ["http.sse_ping_interval", "engine.max_concurrency", "engine.kv_capacity"]
    assert digest(adopted) == digest(theirs) != digest(own)
    assert adopted.engine.max_concurrency == 3
    assert adopted.engine.max_connections == 7
    assert adopted.engine.cluster_token_file == "/b"
    assert adopted.http.port == 99


def test_equal_settings_change_nothing():
    own = settings()
    assert adopt(own, encode_shared(own)) == (own, [])


def test_an_optional_section_is_adopted_whole():
    rope = {"factor": 2.0, "original_max_position_embeddings": 4096}
    theirs, own = settings({"rope_scaling": rope}), settings()
    adopted, changed = adopt(own, encode_shared(theirs))
    assert changed == ["engine.rope_scaling"]
    assert adopted.engine.rope_scaling == theirs.engine.rope_scaling
    assert adopt(theirs, encode_shared(own))[0].engine.rope_scaling is None


def test_nothing_of_a_site_travels():
    sent = json.loads(encode_shared(settings({"cluster_token_file": "/secret/place"})))
    local = [path for path, field in leaves(Settings).items() if not field.key.shared]
    assert "paths.log_dir" in local
    for path in local:
        section, _, name = path.rpartition(".")
        assert name not in (sent.get(section, {}) if section else sent), path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"{", "settings of rank 0: Input data was truncated"),
        (b'{"model":"m","engine":{"kv_kapacity":1}}', "engine.kv_kapacity: unknown key"),
        (b'{"model":"m","engine":{"max_concurrency":99}}', "engine.max_concurrency: expected"),
        (b'{"engine":{}}', "model: required"),
    ],
)
def test_what_are_no_settings_is_named(given, said):
    with pytest.raises(ConfigError, match=said):
        adopt(settings(), given)
